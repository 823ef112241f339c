import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs JUnit classes, one line of JSON for each test: {@code IntegrationRun CLASS...}. */
public final class IntegrationRun extends RunListener {
    private long began;
    private String outcome;
    private Failure why;

    private IntegrationRun() { }

    public static void main(String[] classes) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new IntegrationRun());
        for (String name : classes) {
            core.run(Class.forName(name));
        }
        System.exit(0);
    }

    @Override
    public void testStarted(Description test) {
        began = System.currentTimeMillis();
        outcome = "passed";
        why = null;
    }

    @Override
    public void testFailure(Failure failure) {
        outcome = "failed";
        why = failure;
        if (failure.getDescription().isSuite()) {
            tell(failure.getDescription());
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        outcome = "skipped";
        why = failure;
    }

    @Override
    public void testIgnored(Description test) {
        outcome = "ignored";
        why = null;
        began = System.currentTimeMillis();
        tell(test);
    }

    @Override
    public void testFinished(Description test) {
        tell(test);
    }

    private void tell(Description test) {
        Map<String, Object> line = new LinkedHashMap<>();
        String name = test.getClassName();
        line.put("test", name.substring(name.lastIndexOf('.') + 1) + (test.getMethodName() == null ? "" : "." + test.getMethodName()));
        line.put("outcome", outcome);
        line.put("ms", System.currentTimeMillis() - began);
        line.put("detail", "");
        if (why != null) {
            StringWriter text = new StringWriter();
            text.append(String.valueOf(why.getMessage())).append('\n');
            why.getException().printStackTrace(new PrintWriter(text));
            line.put("detail", text.toString());
        }
        System.out.println(Json.of(line));
    }
}
