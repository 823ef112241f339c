"""Pushed filters that belong to one plan: ``where key = …`` reads less, and no other plan notices.

Spark 4.3 keeps what a Python source answers to pushed filters in the object behind ``load()``. All
plans over a frame share it; a plan without filters, or the other side of a join, then gets the
partitions of another one. The source cannot tell whose partitions it is asked for, so by itself it
lets nothing be pushed.

`install` adds a rule to a session's optimizer, right before filters are pushed: a read of this
source that has a filter directly above it gets a table object of its own, with the option
``pushdown``. The plan that was optimized is the only one that has it, each read in it has its own,
and the frame's table, which all others use, never sees a filter. So nothing has to be guessed:

    frame.where(a).count(); frame.count()           two plans, two tables
    frame.where(a).union(frame.where(b))            one plan, two tables
    frame.where(a).join(frame, …)                   one plan, one new table beside the frame's
    cached = frame.where(a).cache()                 the plan that fills the cache has its own

The rule is some lines of Java, since rules live in the JVM; Janino, with which Spark compiles its
generated code, compiles them in the driver. Executors see nothing of it. A Spark Connect server has
to do this for itself; its clients cannot.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)

CONF: Final = "spark.sql.python.filterPushdown.enabled"
_SOURCE: Final = "rocketmq"
_PACKAGE: Final = "oberth.spark.pushdown"
_JAVA: Final = """
package %(package)s;

import java.util.HashMap;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.runtime.AbstractPartialFunction;

public class TableForEachFilter extends Rule {
    public TreeNode apply(TreeNode plan) {
        if (!SQLConf.get().pythonFilterPushDown()) return plan;
        return (TreeNode) ((LogicalPlan) plan).transformDown(new Swap());
    }

    public static class Builder extends scala.runtime.AbstractFunction1 {
        public Object apply(Object session) { return new TableForEachFilter(); }
    }

    public static class Swap extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) { return filtered(node) != null; }

        public Object applyOrElse(Object node, Function1 otherwise) {
            DataSourceV2Relation read = filtered(node);
            if (read == null) return otherwise.apply(node);
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(read.table().name());
            HashMap options = new HashMap(read.options().asCaseSensitiveMap());
            options.put("pushdown", "true");
            DataSourceV2Relation own = read.copy(
                new PythonTable(source, read.table().name(), read.table().schema()),
                read.output(), read.catalog(), read.identifier(),
                new CaseInsensitiveStringMap(options), read.timeTravelSpec());
            return new Filter(((Filter) node).condition(), own);
        }

        private static DataSourceV2Relation filtered(Object node) {
            if (!(node instanceof Filter)) return null;
            LogicalPlan child = ((Filter) node).child();
            if (!(child instanceof DataSourceV2Relation)) return null;
            DataSourceV2Relation read = (DataSourceV2Relation) child;
            boolean ours = read.table() instanceof PythonTable
                && read.table().name().equalsIgnoreCase("%(source)s");
            return ours && !read.options().containsKey("pushdown") ? read : null;
        }
    }
}
"""
_installed: Final[WeakSet[Any]] = WeakSet()


def install(session: SparkSession) -> bool:
    """Lets filters be pushed to ``format("rocketmq")`` in a session; gives whether that worked.

    Filters are pushed where ``spark.sql.python.filterPushdown.enabled`` is true. Where this is not
    possible (Spark Connect, another Spark than 4.3) the session stays as it was: right, and reads
    everything.
    """
    context = getattr(session, "_sc", None)
    if context is None:
        return False
    if context in _installed:
        return True
    from py4j.protocol import Py4JError

    try:
        jvm = context._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(
            jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        )
        compiler.cook(_JAVA % {"package": _PACKAGE, "source": _SOURCE})
        builder = compiler.getClassLoader().loadClass(f"{_PACKAGE}.TableForEachFilter$Builder")
        session._jsparkSession.extensions().injectPreCBORule(builder.newInstance())
    except (Py4JError, TypeError, AttributeError) as error:  # a Spark of another shape
        _LOG.warning("filters are not pushed in this session: %s", str(error)[:500])
        return False
    _installed.add(context)
    return True
