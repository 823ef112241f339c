import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's own REST catalog over a directory: its servlet, its adapter, its JDBC catalog on SQLite.
 *
 * Started with the directory; prints its port, and ends with its standard input. Needs Hadoop's
 * client, which PySpark brings, for the server's own files.
 */
public class RestCatalog {
    public static void main(String[] words) throws Exception {
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.initialize("rest", Map.of(
            "uri", "jdbc:sqlite:" + words[0] + "/rest.db",
            "warehouse", "file://" + words[0],
            "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO",
            "jdbc.schema-version", "V1"));
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        ServletContextHandler handler = new ServletContextHandler();
        handler.addServlet(
            new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        server.setHandler(handler);
        server.start();
        System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
        while (System.in.read() >= 0) {}
        server.stop();
    }
}
