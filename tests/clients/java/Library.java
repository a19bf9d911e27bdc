import java.util.Map;

/** A client library. */
interface Library {
    /** The version, as it is installed. */
    String version();

    /** Returns a token that is remembered nowhere. */
    String token() throws Exception;

    /** What a session may do, by name. */
    Map<String, Step> steps() throws Exception;

    /** One thing that an application does. */
    interface Step {
        Object run() throws Exception;
    }
}
