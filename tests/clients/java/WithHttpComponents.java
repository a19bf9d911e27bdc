import org.apache.hc.client5.http.classic.methods.HttpGet;
import org.apache.hc.client5.http.impl.classic.CloseableHttpClient;
import org.apache.hc.client5.http.impl.classic.HttpClients;
import org.apache.hc.client5.http.impl.io.PoolingHttpClientConnectionManagerBuilder;
import org.apache.hc.core5.http.io.entity.EntityUtils;
import org.apache.hc.core5.util.VersionInfo;

/** Apache HttpComponents, which of all its versions in 5.4 and 5.4.1 offers TLS ({@code Upgrade: TLS/1.2}). */
final class WithHttpComponents extends Asking {
    /** Its default of 5 connections to a server would let the others wait until those are done. */
    private static final int MAX_CONNECTIONS = 50;

    private final CloseableHttpClient client = HttpClients.custom()
            .setConnectionManager(PoolingHttpClientConnectionManagerBuilder.create()
                    .setMaxConnPerRoute(MAX_CONNECTIONS)
                    .setMaxConnTotal(MAX_CONNECTIONS)
                    .build())
            .build();

    @Override
    public String version() {
        return VersionInfo.loadVersionInfo("org.apache.hc.client5", CloseableHttpClient.class.getClassLoader()).getRelease();
    }

    @Override
    Answer ask(String url) throws Exception {
        var request = new HttpGet(url);
        request.addHeader("Metadata-Flavor", "Google");
        return client.execute(request, response -> {
            var flavor = response.getFirstHeader("Metadata-Flavor");
            var body = EntityUtils.toString(response.getEntity());
            return new Answer(response.getCode(), flavor == null ? null : flavor.getValue(), body);
        });
    }
}
