import com.google.cloud.opentelemetry.detection.AttributeKeys;
import com.google.cloud.opentelemetry.detection.DetectedPlatform;
import com.google.cloud.opentelemetry.detection.GCPPlatformDetector;
import java.lang.reflect.Proxy;
import java.util.Map;

/**
 * OpenTelemetry's detector: what it takes the platform for, in a pod and on a machine without Kubernetes. It knows the metadata server by
 * its name only, so it is given another address as its own tests do.
 */
final class WithOpenTelemetry implements Library {
    private static final String PACKAGE = "com.google.cloud.opentelemetry.detection.";
    private static final String URL = "http://" + System.getenv("GCE_METADATA_HOST") + "/computeMetadata/v1/";

    @Override
    public String version() {
        return GCPPlatformDetector.class.getProtectionDomain().getCodeSource().getLocation().getPath()
                .replaceAll(".*-support-|\\.jar", "");
    }

    @Override
    public String token() {
        throw new UnsupportedOperationException();
    }

    @Override
    public Map<String, Step> steps() {
        return Map.of("platform", WithOpenTelemetry::platform, "machine", WithOpenTelemetry::machine);
    }

    private static String platform() throws Exception {
        var found = detect("10.0.0.1");
        var attributes = found.getAttributes();
        var kind = found.getSupportedPlatform().name().equals("GOOGLE_KUBERNETES_ENGINE") ? "gcp_kubernetes_engine" : null;
        return kind + " " + attributes.get(AttributeKeys.GKE_CLUSTER_NAME) + " "
                + attributes.get(AttributeKeys.GKE_CLUSTER_LOCATION);
    }

    private static String machine() throws Exception {
        var found = detect(null);
        var attributes = found.getAttributes();
        return attributes.get(AttributeKeys.GCE_INSTANCE_ID) + " " + attributes.get(AttributeKeys.GCE_INSTANCE_NAME) + " "
                + attributes.get(AttributeKeys.GCE_AVAILABILITY_ZONE);
    }

    /** {@code host}: the variable that every pod has. */
    private static DetectedPlatform detect(String host) throws Exception {
        var variables = Class.forName(PACKAGE + "EnvironmentVariables");
        var loader = WithOpenTelemetry.class.getClassLoader();
        var config = Class.forName(PACKAGE + "GCPMetadataConfig").getDeclaredConstructor(String.class);
        config.setAccessible(true);
        var environment = Proxy.newProxyInstance(
                loader, new Class<?>[] {variables}, (self, method, names) -> "KUBERNETES_SERVICE_HOST".equals(names[0]) ? host : null);
        var detector = GCPPlatformDetector.class.getDeclaredConstructor(config.getDeclaringClass(), variables);
        detector.setAccessible(true);
        return detector.newInstance(config.newInstance(URL), environment).detectPlatform();
    }
}
