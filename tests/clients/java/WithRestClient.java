import org.springframework.core.SpringVersion;
import org.springframework.http.client.JdkClientHttpRequestFactory;
import org.springframework.web.client.RestClient;

/** Spring's client, on the JDK's, which it takes if no other is there. */
final class WithRestClient extends Asking {
    private final RestClient client = RestClient.builder()
            .requestFactory(new JdkClientHttpRequestFactory())
            .defaultStatusHandler(status -> true, (request, response) -> {})
            .build();

    @Override
    public String version() {
        return SpringVersion.getVersion();
    }

    @Override
    Answer ask(String url) {
        var response = client.get().uri(url).header("Metadata-Flavor", "Google").retrieve().toEntity(String.class);
        var flavor = response.getHeaders().getFirst("Metadata-Flavor");
        return new Answer(response.getStatusCode().value(), flavor, response.getBody());
    }
}
