import com.google.auth.oauth2.ComputeEngineCredentials;
import com.google.auth.oauth2.GoogleCredentials;
import com.google.auth.oauth2.IdTokenProvider;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** google-auth-library-oauth2-http, of today and of 2020. */
final class WithGoogleAuth implements Library {
    private ComputeEngineCredentials found;

    @Override
    public String version() {
        var properties = new Properties();
        var path = "/META-INF/maven/com.google.auth/google-auth-library-oauth2-http/pom.properties";
        try (var file = WithGoogleAuth.class.getResourceAsStream(path)) {
            properties.load(file);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return properties.getProperty("version");
    }

    @Override
    public String token() throws Exception {
        return scoped(ComputeEngineCredentials.create(), Asking.READ_ONLY);
    }

    @Override
    public Map<String, Step> steps() {
        return Map.of(
                "detect", () -> {
                    found = (ComputeEngineCredentials) GoogleCredentials.getApplicationDefault();
                    return true;
                },
                "project", () -> since2023("getProjectId"),
                "token", () -> found.refreshAccessToken().getTokenValue(),
                "account", () -> found.getAccount(),
                "scoped", () -> scoped(found, Asking.CLOUD_PLATFORM),
                "refresh", () -> scoped(found, Asking.CLOUD_PLATFORM),
                "identity", () -> ((IdTokenProvider) found).idTokenWithAudience(Asking.AUDIENCE, List.of()).getTokenValue(),
                "universe", () -> since2023("getUniverseDomain"));
    }

    private static String scoped(ComputeEngineCredentials credentials, String scope) throws Exception {
        return credentials.createScoped(List.of(scope)).refreshAccessToken().getTokenValue();
    }

    /** Calls what the library of 2020 does not have. */
    private Object since2023(String method) throws Exception {
        return ComputeEngineCredentials.class.getMethod(method).invoke(found);
    }
}
