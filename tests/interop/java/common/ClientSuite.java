import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Scenarios through the official client against any broker:
 * {@code ClientSuite namesrv=HOST:PORT [front=HOST:PORT] [only=a,b] [timeout=SECONDS] [parallel=N]}, or {@code ClientSuite list}. One line of JSON per scenario:
 * scenario, ok (null when skipped), ms, detail, counts, observed.
 */
public final class ClientSuite {
    private ClientSuite() { }

    public static void main(String[] args) throws Exception {
        Map<String, Case.Scenario> table = new LinkedHashMap<>();
        Scenarios.register(table);
        Api.extraScenarios(table);
        if (args.length == 1 && args[0].equals("list")) {
            table.keySet().forEach(System.out::println);
            System.exit(0);
        }
        Map<String, String> options = new LinkedHashMap<>();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            options.put(pair[0], pair[1]);
        }
        List<String> names = new ArrayList<>(table.keySet());
        if (options.containsKey("only")) {
            names = Arrays.asList(options.get("only").split(","));
        }
        int timeout = Integer.parseInt(options.getOrDefault("timeout", "90"));
        String run = Long.toString(System.currentTimeMillis() % 100_000_000L, 36);
        ExecutorService several = Executors.newFixedThreadPool(Integer.parseInt(options.getOrDefault("parallel", "3")));
        List<Callable<Void>> jobs = new ArrayList<>();
        for (String name : names) {
            Case.Scenario scenario = table.get(name);
            if (scenario == null) {
                throw new IllegalArgumentException("no scenario " + name + "; there are " + table.keySet());
            }
            jobs.add(() -> {
                Case c = new Case(options.get("namesrv"), name + "_" + run);
                c.front = options.getOrDefault("front", c.namesrv);
                run(name, scenario, c, timeout);
                return null;
            });
        }
        several.invokeAll(jobs);
        System.exit(0);
    }

    private static void run(String name, Case.Scenario scenario, Case c, int timeout) {
        ExecutorService thread = Executors.newSingleThreadExecutor(job -> {
            Thread t = new Thread(job, name);
            t.setDaemon(true);
            return t;
        });
        long begin = System.currentTimeMillis();
        Boolean ok = true;
        String detail = "";
        Future<?> future = thread.submit(() -> {
            scenario.run(c);
            return null;
        });
        try {
            future.get(timeout, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            ok = false;
            detail = "not done after " + timeout + " s";
            future.cancel(true);
        } catch (Exception e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            ok = cause instanceof Case.Skip ? null : (Boolean) false;
            detail = cause instanceof AssertionError || cause instanceof Case.Skip ? cause.getMessage() : cause + at(cause);
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", name);
        line.put("ok", ok);
        line.put("ms", System.currentTimeMillis() - begin);
        line.put("detail", detail);
        line.put("counts", c.counts);
        line.put("observed", c.observed);
        synchronized (ClientSuite.class) {
            System.out.println(Json.of(line));
        }
        try {
            thread.submit(c::close).get(20, TimeUnit.SECONDS);
        } catch (Exception e) {
            System.err.println(name + ": closing its clients: " + e);
        }
        thread.shutdownNow();
    }

    private static String at(Throwable cause) {
        for (StackTraceElement frame : cause.getStackTrace()) {
            if (frame.getClassName().startsWith("Scenarios") || frame.getClassName().equals("Case")) {
                return " at " + frame.getFileName() + ":" + frame.getLineNumber();
            }
        }
        return "";
    }
}
