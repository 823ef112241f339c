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
 * Scenarios of the official gRPC client: {@code GrpcSuite HOST:PORT RUN PARALLEL SCENARIO...}. Topic {@code RUN_SCENARIO} and
 * group {@code RUN_SCENARIO_G} exist already. One line of JSON per scenario: scenario, ok, ms, detail, counts, observed.
 */
public final class GrpcSuite {
    private static final int TIMEOUT_SECONDS = 300;

    private GrpcSuite() { }

    public static void main(String[] args) throws Exception {
        ExecutorService several = Executors.newFixedThreadPool(Integer.parseInt(args[2]));
        List<Callable<Void>> jobs = new ArrayList<>();
        for (String name : Arrays.asList(args).subList(3, args.length)) {
            jobs.add(() -> {
                run(name, GrpcScenarios.TABLE.get(name), new GrpcCase(args[0], args[1] + "_" + name));
                return null;
            });
        }
        several.invokeAll(jobs);
        System.exit(0);
    }

    private static void run(String name, GrpcCase.Scenario scenario, GrpcCase c) {
        ExecutorService thread = Executors.newSingleThreadExecutor(job -> {
            Thread t = new Thread(job, name);
            t.setDaemon(true);
            return t;
        });
        long begin = System.currentTimeMillis();
        boolean ok = true;
        String detail = "";
        Future<?> future = thread.submit(() -> {
            scenario.run(c);
            return null;
        });
        try {
            future.get(TIMEOUT_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            ok = false;
            detail = "not done after " + TIMEOUT_SECONDS + " s";
            future.cancel(true);
        } catch (Exception e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            ok = false;
            detail = cause instanceof AssertionError ? cause.getMessage() : cause + at(cause);
        }
        c.observeAdded();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", name);
        line.put("ok", ok);
        line.put("ms", System.currentTimeMillis() - begin);
        line.put("detail", detail);
        line.put("counts", c.counts);
        line.put("observed", c.observed);
        synchronized (GrpcSuite.class) {
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
            if (frame.getClassName().startsWith("Grpc")) {
                return " at " + frame.getFileName() + ":" + frame.getLineNumber();
            }
        }
        return "";
    }
}
