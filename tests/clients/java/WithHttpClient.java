import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

/** The JDK's own client, which offers HTTP/2 ({@code Upgrade: h2c}) with each request until a server accepts it. */
final class WithHttpClient extends Asking {
    private final HttpClient client = HttpClient.newHttpClient();

    @Override
    public String version() {
        return System.getProperty("java.version");
    }

    @Override
    Answer ask(String url) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(url)).header("Metadata-Flavor", "Google").build();
        var response = client.send(request, BodyHandlers.ofString());
        var flavor = response.headers().firstValue("Metadata-Flavor").orElse(null);
        return new Answer(response.statusCode(), flavor, response.body());
    }
}
