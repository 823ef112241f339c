import java.util.*;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
// Prints one value as RemotingSerializable does, pretty and compact:
// java -cp "rocketmq-libs/*" Fastjson.java > fastjson-VERSION.txt
public class Fastjson {
 public static class Bean { int a=1; String s="x"; List<Bean> list=new ArrayList<>(); Integer nul=null; int[] prim={1,2,3}; Map<Integer,Object> m=new LinkedHashMap<>(); Set<String> set=new TreeSet<>(); double d=1.5; Long[] boxed={1L,2L};
  public int getA(){return a;} public String getS(){return s;} public List<Bean> getList(){return list;} public Integer getNul(){return nul;} public int[] getPrim(){return prim;} public Map<Integer,Object> getM(){return m;} public Set<String> getSet(){return set;} public double getD(){return d;} public Long[] getBoxed(){return boxed;} }
 public static void main(String[] z) throws Exception {
  Bean b=new Bean(); Bean c=new Bean(); c.prim=new int[0]; c.boxed=new Long[0]; b.list.add(c); b.list.add(null); b.set.add("q"); b.set.add("r");
  b.m.put(0, 5L); b.m.put(1, new Bean()); b.m.put(2, new ArrayList<>(List.of(1,2))); b.m.put(3, new LinkedHashMap<>(Map.of("k",1))); b.m.put(4, new HashMap<>()); b.m.put(5,new ArrayList<>()); b.m.put(6,"str"); b.m.put(7,new LinkedHashMap<>(Map.of(1,2)));
  String e=""; for(int i=0;i<0x20;i++) e+=(char)i; e+="\"\\/<>&'é中\u007f\u0080\u2028\u2029\uFEFF😀\uD800x";
  LinkedHashMap<String,Object> r=new LinkedHashMap<>(); r.put("bean",b); r.put(e,e); r.put("n",null); r.put("f",1.0f); r.put("e",1e20); r.put("big",Long.MAX_VALUE); r.put("bool",true); r.put("chr",'c'); r.put("bd", new java.math.BigDecimal("1.10"));
  LinkedHashMap<Object,Object> mix=new LinkedHashMap<>(); mix.put("s",1); mix.put(2,3); mix.put(4L,5); mix.put(true,6); mix.put("t",7); r.put("mix",mix);
  r.put("ll", new ArrayList<>(List.of(new ArrayList<>(List.of(1L,2L)), new ArrayList<>(List.of("a")), new ArrayList<>())));
  System.out.write(RemotingSerializable.toJson(r,true).getBytes("UTF-8")); System.out.println("\n-----"); System.out.write(RemotingSerializable.toJson(r,false).getBytes("UTF-8")); System.out.println();
 } }
