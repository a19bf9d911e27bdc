import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Does what a Java application does with its credentials, and prints one JSON line about it.
 *
 * <pre>
 * usage: Application LIBRARY session STEP...
 *        Application LIBRARY token         one token, as a process that starts
 *        Application LIBRARY many COUNT    so many tokens at once, a thread each
 *        Application LIBRARY stay FILE     token after token, none remembered, until FILE exists
 * </pre>
 *
 * LIBRARY is a class beside this one: WithGoogleAuth, WithHttpClient, WithRestClient or WithHttpComponents.
 */
final class Application {
    private record Outcome(Object value, String error) {
        static Outcome of(Library.Step step) {
            try {
                return new Outcome(step.run(), null);
            } catch (Exception error) {
                return new Outcome(null, told(error));
            }
        }

        String json() {
            return error == null ? "{\"ok\":" + text(value) + "}" : "{\"error\":" + text(error) + "}";
        }
    }

    public static void main(String[] arguments) throws Exception {
        Logger.getLogger("").setLevel(Level.OFF);
        var library = (Library) Class.forName(arguments[0]).getDeclaredConstructor().newInstance();
        var rest = List.of(arguments).subList(2, arguments.length);
        String seen = switch (arguments[1]) {
            case "session" -> session(library.steps(), rest);
            case "token" -> tally(List.of(Outcome.of(library::token)));
            case "many" -> tally(many(library, Integer.parseInt(rest.get(0))));
            case "stay" -> tally(stay(library, Path.of(rest.get(0))));
            default -> throw new IllegalArgumentException(arguments[1]);
        };
        System.out.println("{\"version\":" + text(library.version()) + "," + seen + "}");
        // Libraries leave threads behind that would keep the process.
        System.exit(0);
    }

    private static String session(Map<String, Library.Step> steps, List<String> names) {
        var seen = new ArrayList<String>();
        for (String name : names) {
            seen.add(text(name) + ":" + Outcome.of(steps.get(name)).json());
        }
        return "\"steps\":{" + String.join(",", seen) + "}";
    }

    private static List<Outcome> many(Library library, int count) throws InterruptedException {
        var outcomes = new Outcome[count];
        var start = new CyclicBarrier(count);
        var threads = new ArrayList<Thread>();
        for (int i = 0; i < count; i++) {
            int number = i;
            threads.add(new Thread(() -> outcomes[number] = Outcome.of(() -> {
                start.await();
                return library.token();
            })));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        return List.of(outcomes);
    }

    private static List<Outcome> stay(Library library, Path file) {
        var outcomes = new ArrayList<Outcome>();
        while (!Files.exists(file)) {
            outcomes.add(Outcome.of(library::token));
        }
        return outcomes;
    }

    private static String tally(List<Outcome> outcomes) {
        var tokens = outcomes.stream().filter(one -> one.error() == null).map(one -> text(one.value())).toList();
        var errors = outcomes.stream().filter(one -> one.error() != null).map(one -> text(one.error())).toList();
        return "\"tokens\":[" + String.join(",", tokens) + "],\"errors\":[" + String.join(",", errors) + "]";
    }

    /** The error and its causes, which have what the server said. */
    private static String told(Throwable error) {
        var all = new StringBuilder();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            all.append(all.isEmpty() ? "" : ": ").append(cause);
        }
        return all.toString();
    }

    private static String text(Object value) {
        if (value == null || value instanceof Boolean) {
            return String.valueOf(value);
        }
        var json = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            switch (c) {
                case '"', '\\' -> json.append('\\').append(c);
                default -> json.append(c < ' ' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
            }
        }
        return json.append('"').toString();
    }
}
