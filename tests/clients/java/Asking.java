import java.io.IOException;
import java.util.Map;
import java.util.regex.Pattern;

/** An application that asks the metadata server itself, over whichever HTTP client. */
abstract class Asking implements Library {
    static final String CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform";
    /** A scope of its own, so that this is no token that the proxy has from its start. */
    static final String READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only";
    static final String AUDIENCE = "https://example.com";

    private static final String ROOT = "http://" + System.getenv("GCE_METADATA_HOST");
    private static final String ACCOUNT = "/computeMetadata/v1/instance/service-accounts/default/";
    private static final Pattern TOKEN = Pattern.compile("\"access_token\":\"([^\"]*)\"");

    /** What a server answered. */
    record Answer(int status, String flavor, String body) {}

    /** Asks as the HTTP client does if nothing is configured, but with {@code Metadata-Flavor: Google}. */
    abstract Answer ask(String url) throws Exception;

    @Override
    public final String token() throws Exception {
        return token("?scopes=" + READ_ONLY);
    }

    @Override
    public final Map<String, Step> steps() {
        return Map.of(
                "detect", () -> "Google".equals(ask(ROOT + "/").flavor()),
                "project", () -> get("/computeMetadata/v1/project/project-id"),
                "token", () -> token(""),
                "account", () -> get(ACCOUNT + "email"),
                "scoped", () -> token("?scopes=" + CLOUD_PLATFORM),
                "refresh", () -> token("?scopes=" + CLOUD_PLATFORM),
                "identity", () -> get(ACCOUNT + "identity?audience=" + AUDIENCE),
                "universe", () -> get("/computeMetadata/v1/universe/universe-domain"));
    }

    private String token(String query) throws Exception {
        var token = TOKEN.matcher(get(ACCOUNT + "token" + query));
        return token.find() ? token.group(1) : null;
    }

    private String get(String path) throws Exception {
        var answer = ask(ROOT + path);
        if (answer.status() != 200) {
            throw new IOException(answer.status() + ": " + answer.body());
        }
        return answer.body();
    }
}
