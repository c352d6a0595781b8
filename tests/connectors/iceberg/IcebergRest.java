import java.net.InetSocketAddress;
import java.util.HashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog on loopback. Arguments: a port, then properties of the JDBC catalog that it keeps. */
public class IcebergRest {
    public static void main(String[] arguments) throws Exception {
        var properties = new HashMap<String, String>();
        properties.put("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog");
        properties.put("jdbc.schema-version", "V1");
        for (int i = 1; i < arguments.length; i++) {
            var pair = arguments[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        var catalog = CatalogUtil.buildIcebergCatalog("rest", properties, new Configuration());
        var handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        handler.setContextPath("/");
        handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(handler);
        server.start();
        server.join();
    }
}
