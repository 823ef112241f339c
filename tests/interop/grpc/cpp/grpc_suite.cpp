// Scenarios of the official gRPC client for C++: grpc-suite HOST:PORT RUN PARALLEL NAME...
//
// Topic RUN_NAME and group RUN_NAME_G exist already. One line of JSON per scenario: scenario, ok, ms,
// detail, counts, observed. The same checks as in the suites of the other languages. TLS, as the
// client does it unless told otherwise. It has no lite topics, and a check of a transaction has no
// answer "unknown".

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rocketmq/ErrorCode.h"
#include "rocketmq/Logger.h"
#include "rocketmq/Message.h"
#include "rocketmq/Producer.h"
#include "rocketmq/PushConsumer.h"
#include "rocketmq/SimpleConsumer.h"

using namespace rocketmq;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Wall = std::chrono::system_clock;
using Ids = std::set<int>;

namespace {

const char* SQL = "TAGS IN ('A','C') AND i BETWEEN 0 AND 1000";
const char* TAGS[] = {"A", "B", "C"};

void check(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

void must(const std::error_code& ec, const std::string& what) {
  check(!ec, what + ": " + ec.message() + " (" + std::to_string(ec.value()) + ")");
}

template <typename Many> std::string show(const Many& many) {
  std::string text;
  for (const auto& each : many) {
    text += (text.empty() ? "" : " ") + std::to_string(each);
  }
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

/** What one message was when it came. */
struct View {
  int id;
  std::string message_id, group, tag;
  int attempt, priority;
  Wall::time_point due;
  Clock::time_point at;
};

Ids ids(const std::vector<View>& views) {
  Ids found;
  for (const auto& view : views) {
    found.insert(view.id);
  }
  return found;
}

Ids range(int end, const std::function<bool(int)>& which = nullptr) {
  Ids found;
  for (int i = 0; i < end; i++) {
    if (!which || which(i)) {
      found.insert(i);
    }
  }
  return found;
}

bool not_b(int i) { return i % 3 != 1; }

/** What a push consumer was given, in order of arrival. */
struct Sink {
  std::mutex mutex;
  std::vector<View> views;
  Clock::time_point last = Clock::now();

  void add(View view) {
    std::lock_guard<std::mutex> lock(mutex);
    last = Clock::now();
    views.push_back(std::move(view));
  }

  std::vector<View> all() {
    std::lock_guard<std::mutex> lock(mutex);
    return views;
  }

  void wait(int seconds, const std::string& what, const std::function<bool(const std::vector<View>&)>& enough) {
    auto until = Clock::now() + std::chrono::seconds(seconds);
    while (!enough(all())) {
      check(Clock::now() < until, "not in time: " + what + "; arrived " + show(ids(all())));
      std::this_thread::sleep_for(20ms);
    }
  }

  void wait_ids(int seconds, const Ids& wanted) {
    wait(seconds, show(wanted), [&](const std::vector<View>& views) {
      auto found = ids(views);
      for (int each : wanted) {
        if (!found.count(each)) {
          return false;
        }
      }
      return true;
    });
  }

  void wait_quiet(std::chrono::milliseconds quiet) {
    for (;;) {
      Clock::time_point until;
      {
        std::lock_guard<std::mutex> lock(mutex);
        until = last + quiet;
      }
      if (Clock::now() >= until) {
        return;
      }
      std::this_thread::sleep_until(until);
    }
  }
};

struct Run {
  std::string endpoint, topic, group;
  std::map<std::string, long> counts;
  std::map<std::string, std::string> observed;
  std::mutex mutex;
  std::set<std::string> added;

  Configuration configuration() const {
    return Configuration::newBuilder().withEndpoints(endpoint).withRequestTimeout(10s).build();
  }

  Producer producer(TransactionChecker checker = nullptr) const {
    auto builder = Producer::newBuilder();
    builder.withConfiguration(configuration()).withTopics({topic});
    if (checker) {
      builder.withTransactionChecker(checker);
    }
    return builder.build();
  }

  SimpleConsumer simple(const FilterExpression& filter = FilterExpression("*")) const {
    return SimpleConsumer::newBuilder()
        .withGroup(group)
        .withConfiguration(configuration())
        .withAwaitDuration(5s)
        .subscribe(topic, filter)
        .build();
  }

  PushConsumer push(const FilterExpression& filter, const MessageListener& listener) const {
    return PushConsumer::newBuilder()
        .withGroup(group)
        .withConfiguration(configuration())
        .withConsumeThreads(8)
        .withListener(listener)
        .subscribe(topic, filter)
        .build();
  }

  PushConsumer push(Sink& sink, const FilterExpression& filter = FilterExpression("*")) {
    return push(filter, [this, &sink](const Message& message) {
      sink.add(view(message));
      return ConsumeResult::SUCCESS;
    });
  }

  MessageBuilder builder(int i, const char* tag = "A") const {
    auto made = Message::newBuilder();
    made.withTopic(topic)
        .withBody("body " + std::to_string(i) + " ü中")
        .withTag(tag)
        .withKeys({"k" + std::to_string(i)})
        .withProperties({{"i", std::to_string(i)}});
    return made;
  }

  /** Everything that was given to builder() came back. */
  View view(const Message& message) {
    const auto& properties = message.properties();
    check(properties.count("i"), "no property i");
    int i = std::stoi(properties.at("i"));
    check(message.body() == "body " + std::to_string(i) + " ü中", "body of " + std::to_string(i));
    check(message.topic() == topic, "topic " + message.topic());
    check(message.keys() == std::vector<std::string>{"k" + std::to_string(i)}, "keys");
    check(!message.bornHost().empty() && message.bornTime() > Wall::time_point(), "no birth");
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (const auto& each : properties) {
        if (each.first != "i") {
          added.insert(each.first);
        }
      }
    }
    return {i, message.id(), message.group(), message.tag(), message.extension().delivery_attempt,
            message.priority(), message.extension().delivery_timepoint, Clock::now()};
  }

  SendReceipt send(Producer& producer, MessageConstPtr message) const {
    std::error_code ec;
    auto receipt = producer.send(std::move(message), ec);
    must(ec, "send");
    return receipt;
  }

  static int error_of(Producer& producer, MessageConstPtr message) {
    std::error_code ec;
    producer.send(std::move(message), ec);
    return ec.value();
  }

  std::vector<MessageConstSharedPtr> receive(SimpleConsumer& consumer, int count, std::chrono::seconds invisible) const {
    std::error_code ec;
    std::vector<MessageConstSharedPtr> found;
    consumer.receive(count, invisible, ec, found);
    // Its first assignment may not have come yet: NotFound.
    for (auto nothing : {ErrorCode::NoContent, ErrorCode::MessageNotFound, ErrorCode::NotFound}) {
      if (ec.value() == static_cast<int>(nothing)) {
        return {};
      }
    }
    must(ec, "receive");
    return found;
  }

  static void ack(SimpleConsumer& consumer, const Message& message) {
    std::error_code ec;
    consumer.ack(message, ec);
    must(ec, "ack");
  }

  std::vector<View> drain(SimpleConsumer& consumer, std::size_t wanted, int seconds) {
    std::vector<View> found;
    auto until = Clock::now() + std::chrono::seconds(seconds);
    while (ids(found).size() < wanted) {
      check(Clock::now() < until, std::to_string(ids(found).size()) + " messages in time");
      for (const auto& message : receive(consumer, 16, 20s)) {
        found.push_back(view(*message));
        ack(consumer, *message);
      }
    }
    return found;
  }

  MessageConstSharedPtr one(SimpleConsumer& consumer, std::chrono::seconds invisible) const {
    auto until = Clock::now() + 90s;
    while (Clock::now() < until) {
      auto found = receive(consumer, 1, invisible);
      if (!found.empty()) {
        return found[0];
      }
    }
    throw std::runtime_error("nothing received within 90 s");
  }

  /** So many different ones and no others; what came twice is counted: a stalled machine allows it. */
  void exactly(std::size_t number, const std::vector<View>& views) {
    check(ids(views).size() == number, std::to_string(ids(views).size()) + " messages");
    if (views.size() > number) {
      counts["twice"] = static_cast<long>(views.size() - number);
    }
  }

  void send_tagged() const {
    auto made = producer();
    for (int i = 0; i < 30; i++) {
      send(made, builder(i, TAGS[i % 3]).build());
    }
  }

  void send_groups(int groups, int each) const {
    auto made = producer();
    for (int i = 0; i < groups * each; i++) {
      send(made, builder(i).withGroup("g" + std::to_string(i % groups)).build());
    }
  }
};

void check_order(const std::vector<View>& views, int groups) {
  std::map<std::string, int> last;
  Ids seen;
  for (const auto& view : views) {
    if (!seen.insert(view.id).second) {
      continue;
    }
    check(view.group == "g" + std::to_string(view.id % groups), "message group " + view.group);
    auto before = last.find(view.group);
    check(before == last.end() || before->second < view.id, std::to_string(view.id) + " came too late");
    last[view.group] = view.id;
  }
}

void send_normal(Run& run) {
  auto producer = run.producer();
  std::map<int, std::string> sent;
  for (int i = 0; i < 12; i++) {
    sent[i] = run.send(producer, run.builder(i).build()).message_id;
  }
  std::mutex mutex;
  for (int i = 12; i < 24; i++) {
    producer.send(run.builder(i).build(), [&, i](const std::error_code& ec, SendReceipt&& receipt) {
      std::lock_guard<std::mutex> lock(mutex);
      sent[i] = ec ? "failed: " + ec.message() : receipt.message_id;
    });
  }
  auto until = Clock::now() + 30s;
  for (std::size_t done = 0; done < 24; std::this_thread::sleep_for(10ms)) {
    check(Clock::now() < until, "not all sent");
    std::lock_guard<std::mutex> lock(mutex);
    done = sent.size();
  }
  auto consumer = run.simple();
  for (const auto& view : run.drain(consumer, 24, 60)) {
    check(view.tag == "A", "tag " + view.tag);
    check(view.message_id == sent[view.id], "message id " + view.message_id + " is not " + sent[view.id]);
    run.observed["delivery attempt"] = std::to_string(view.attempt);
  }
  // A body of this length the client compresses.
  std::string large;
  while (large.size() < 300'000) {
    large += std::to_string(large.size());
  }
  auto message = Message::newBuilder();
  run.send(producer, message.withTopic(run.topic).withBody(large).build());
  auto found = run.one(consumer, 20s);
  check(found->body() == large, "the large body came back changed");
  Run::ack(consumer, *found);
}

void push(Run& run) {
  Sink sink;
  auto consumer = run.push(sink);
  auto producer = run.producer();
  for (int i = 0; i < 60; i++) {
    run.send(producer, run.builder(i).build());
  }
  sink.wait_ids(45, range(60));
  sink.wait_quiet(1s);
  run.exactly(60, sink.all());
  consumer.shutdown();
}

void push_retry(Run& run) {
  Sink sink;
  auto consumer = run.push(FilterExpression("*"), [&](const Message& message) {
    auto view = run.view(message);
    bool failed = view.id == 0 || view.attempt == 1;
    sink.add(view);
    return failed ? ConsumeResult::FAILURE : ConsumeResult::SUCCESS;
  });
  auto producer = run.producer();
  for (int i = 0; i < 4; i++) {
    run.send(producer, run.builder(i).build());
  }
  sink.wait(80, "nine attempts", [](const std::vector<View>& views) { return views.size() >= 9; });
  sink.wait_quiet(8s);
  std::map<int, std::set<int>> attempts;
  for (const auto& view : sink.all()) {
    attempts[view.id].insert(view.attempt);
  }
  std::string text;
  for (const auto& each : attempts) {
    text += std::to_string(each.first) + ": " + show(each.second) + "; ";
  }
  check(text == "0: 1 2 3; 1: 1 2; 2: 1 2; 3: 1 2; ", "attempts " + text);
  consumer.shutdown();
}

void push_filtered(Run& run, const FilterExpression& filter) {
  Sink sink;
  auto consumer = run.push(sink, filter);
  run.send_tagged();
  sink.wait_ids(45, range(30, not_b));
  sink.wait_quiet(1s);
  run.exactly(20, sink.all());
  consumer.shutdown();
}

void simple_filtered(Run& run, const FilterExpression& filter) {
  auto consumer = run.simple(filter);
  run.send_tagged();
  auto found = ids(run.drain(consumer, 20, 60));
  check(found == range(30, not_b), "messages " + show(found));
}

void push_fifo(Run& run) {
  Sink sink;
  auto consumer = run.push(sink);
  run.send_groups(5, 8);
  sink.wait_ids(60, range(40));
  sink.wait_quiet(1s);
  run.exactly(40, sink.all());
  check_order(sink.all(), 5);
  consumer.shutdown();
}

void push_fifo_retry(Run& run) {
  Sink sink;
  std::mutex mutex;
  Ids failed;
  auto consumer = run.push(FilterExpression("*"), [&](const Message& message) {
    auto view = run.view(message);
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (view.id < 4 && failed.insert(view.id).second) {
        return ConsumeResult::FAILURE;
      }
    }
    sink.add(view);
    return ConsumeResult::SUCCESS;
  });
  run.send_groups(2, 6);
  sink.wait_ids(80, range(12));
  sink.wait_quiet(1s);
  run.exactly(12, sink.all());
  check_order(sink.all(), 2);
  consumer.shutdown();
}

void simple(Run& run) {
  auto consumer = run.simple();
  auto producer = run.producer();
  for (int i = 0; i < 20; i++) {
    run.send(producer, run.builder(i).build());
  }
  Ids acknowledged, left;
  auto until = Clock::now() + 90s;
  while (acknowledged.size() + left.size() < 20) {
    check(Clock::now() < until, "only " + show(acknowledged) + " and " + show(left) + " came");
    for (const auto& message : run.receive(consumer, 8, 10s)) {
      int i = run.view(*message).id;
      if (i % 4) {
        Run::ack(consumer, *message);
        acknowledged.insert(i);
      } else {
        left.insert(i);
      }
    }
  }
  for (const auto& view : run.drain(consumer, 5, 90)) {
    check(left.count(view.id), std::to_string(view.id) + " came again");
    check(view.attempt > 1, "attempt " + std::to_string(view.attempt));
  }
}

void simple_invisible(Run& run) {
  auto consumer = run.simple();
  auto producer = run.producer();
  run.send(producer, run.builder(0).build());
  auto first = run.one(consumer, 60s);
  auto before = Clock::now();
  std::error_code ec;
  std::string handle = first->extension().receipt_handle;
  consumer.changeInvisibleDuration(*first, handle, 3s, ec);
  must(ec, "change");
  auto second = run.one(consumer, 10s);
  check(Clock::now() - before >= 2s, "it came at once");
  run.observed["attempt"] = std::to_string(second->extension().delivery_attempt);
  handle = second->extension().receipt_handle;
  consumer.changeInvisibleDuration(*second, handle, 40s, ec);
  must(ec, "change");
  for (auto until = Clock::now() + 15s; Clock::now() < until;) {
    check(run.receive(consumer, 1, 10s).empty(), "it came although it was kept invisible");
  }
  // The client gives the new handle back and goes on with the old one.
  const_cast<Message&>(*second).mutableExtension().receipt_handle = handle;
  Run::ack(consumer, *second);
}

void simple_fifo(Run& run) {
  auto consumer = run.simple();
  auto producer = run.producer();
  for (int i = 0; i < 3; i++) {
    run.send(producer, run.builder(i).withGroup("g").build());
  }
  auto found = run.one(consumer, 10s);
  check(run.view(*found).id == 0, "first");
  check(run.receive(consumer, 1, 10s).empty(), "the second came before the first was acknowledged");
  Run::ack(consumer, *found);
  check(run.view(*run.one(consumer, 10s)).id == 1, "second");
  found = run.one(consumer, 10s);
  check(run.view(*found).id == 1, "second, not acknowledged in time");
  run.observed["attempt"] = std::to_string(found->extension().delivery_attempt);
  Run::ack(consumer, *found);
  found = run.one(consumer, 10s);
  check(run.view(*found).id == 2, "third");
  Run::ack(consumer, *found);
}

void delay(Run& run) {
  Sink sink;
  auto consumer = run.push(sink);
  auto producer = run.producer();
  std::map<int, Clock::time_point> due;
  for (int i = 0; i < 8; i++) {
    auto wait = 3000ms + 500ms * i;
    due[i] = Clock::now() + wait;
    run.send(producer, run.builder(i).availableAfter(Wall::now() + wait).build());
  }
  sink.wait_ids(45, range(8));
  for (const auto& view : sink.all()) {
    check(view.at > due[view.id] - 1s && view.at < due[view.id] + 6s, std::to_string(view.id) + " in time");
  }
  consumer.shutdown();
}

void recall(Run& run) {
  Sink sink;
  auto consumer = run.push(sink);
  auto producer = run.producer();
  std::vector<SendReceipt> receipts;
  for (int i = 0; i < 6; i++) {
    receipts.push_back(run.send(producer, run.builder(i).availableAfter(Wall::now() + 8s).build()));
  }
  std::error_code ec;
  for (int i = 0; i < 6; i += 2) {
    auto recalled = producer.recall(run.topic, receipts[i].recall_handle, ec);
    must(ec, "recall");
    check(recalled.message_id == receipts[i].message_id, "id of the recalled message");
  }
  std::string none = "AAAA";
  producer.recall(run.topic, none, ec);
  run.observed["not a handle"] = std::to_string(ec.value());
  sink.wait_ids(45, {1, 3, 5});
  sink.wait_quiet(3s);
  run.exactly(3, sink.all());
  consumer.shutdown();
}

void transaction(Run& run) {
  Sink sink;
  auto consumer = run.push(sink);
  auto producer = run.producer([](const Message&) { return TransactionState::ROLLBACK; });
  for (int i = 0; i < 10; i++) {
    auto begun = producer.beginTransaction();
    std::error_code ec;
    producer.send(run.builder(i).build(), ec, *begun);
    must(ec, "send");
    check(i % 2 ? begun->rollback() : begun->commit(), "end of " + std::to_string(i));
  }
  sink.wait_ids(45, range(10, [](int i) { return i % 2 == 0; }));
  sink.wait_quiet(3s);
  run.exactly(5, sink.all());
  consumer.shutdown();
}

void transaction_check(Run& run) {
  Sink sink;
  auto consumer = run.push(sink);
  std::mutex mutex;
  Ids asked;
  auto producer = run.producer([&](const Message& message) {
    auto view = run.view(message);
    std::lock_guard<std::mutex> lock(mutex);
    asked.insert(view.id);
    return view.id % 3 == 1 ? TransactionState::ROLLBACK : TransactionState::COMMIT;
  });
  std::vector<std::unique_ptr<Transaction>> begun;
  for (int i = 0; i < 6; i++) {
    begun.push_back(producer.beginTransaction());
    std::error_code ec;
    producer.send(run.builder(i).build(), ec, *begun.back());
    must(ec, "send");
  }
  sink.wait_ids(80, range(6, not_b));
  sink.wait_quiet(3s);
  {
    std::lock_guard<std::mutex> lock(mutex);
    check(asked == range(6), "asked about " + show(asked));
  }
  run.exactly(4, sink.all());
  consumer.shutdown();
}

void wrong_type(Run& run) {
  auto producer = run.producer();
  run.observed["message group to a normal topic"] =
      std::to_string(Run::error_of(producer, run.builder(0).withGroup("g").build()));
  run.observed["delivery timestamp to a normal topic"] =
      std::to_string(Run::error_of(producer, run.builder(0).availableAfter(Wall::now() + 5s).build()));
  run.observed["unknown topic"] =
      std::to_string(Run::error_of(producer, run.builder(0).withTopic(run.topic + "-none").build()));
  for (const auto& each : run.observed) {
    check(each.second != "0", each.first + " was taken");
  }
  run.send(producer, run.builder(1).build());
  auto consumer = run.simple();
  auto found = ids(run.drain(consumer, 1, 30));
  check(found == Ids{1}, "messages " + show(found));
}

void priority(Run& run) {
  auto producer = run.producer();
  for (int i = 0; i < 12; i++) {
    run.send(producer, run.builder(i).withPriority(1 + i % 3).build());
  }
  auto consumer = run.simple();
  for (const auto& view : run.drain(consumer, 12, 60)) {
    run.observed["priority comes back"] = view.priority == 1 + view.id % 3 ? "yes" : "no";
  }
}

const std::map<std::string, std::function<void(Run&)>> SCENARIOS = {
    {"send-normal", send_normal},
    {"push", push},
    {"push-retry", push_retry},
    {"push-tags", [](Run& run) { push_filtered(run, FilterExpression("A || C")); }},
    {"push-sql92", [](Run& run) { push_filtered(run, FilterExpression(SQL, SQL92)); }},
    {"push-fifo", push_fifo},
    {"push-fifo-retry", push_fifo_retry},
    {"simple", simple},
    {"simple-invisible", simple_invisible},
    {"simple-tags", [](Run& run) { simple_filtered(run, FilterExpression("A || C")); }},
    {"simple-sql92", [](Run& run) { simple_filtered(run, FilterExpression(SQL, SQL92)); }},
    {"simple-fifo", simple_fifo},
    {"delay", delay},
    {"recall", recall},
    {"transaction", transaction},
    {"transaction-check", transaction_check},
    {"wrong-type", wrong_type},
    {"priority", priority},
};

void perform(const std::string& endpoint, const std::string& prefix, const std::string& name) {
  Run run;
  run.endpoint = endpoint;
  run.topic = prefix + "_" + name;
  run.group = run.topic + "_G";
  auto began = Clock::now();
  std::string detail;
  try {
    SCENARIOS.at(name)(run);
  } catch (const std::exception& why) {
    detail = std::string(why.what()).empty() ? "it failed" : why.what();
  }
  std::string added;
  for (const auto& each : run.added) {
    added += (added.empty() ? "" : " ") + each;
  }
  run.observed["added properties"] = added;
  std::string line = "{\"scenario\": " + quoted(name) + ", \"ok\": " + (detail.empty() ? "true" : "false") +
                     ", \"detail\": " + quoted(detail) + ", \"ms\": " +
                     std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count());
  line += ", \"counts\": {";
  for (const auto& each : run.counts) {
    line += quoted(each.first) + ": " + std::to_string(each.second);
  }
  line += "}, \"observed\": {";
  bool first = true;
  for (const auto& each : run.observed) {
    line += (first ? "" : ", ") + quoted(each.first) + ": " + quoted(each.second);
    first = false;
  }
  static std::mutex printing;
  std::lock_guard<std::mutex> lock(printing);
  std::cout << line << "}}" << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) {
    std::cerr << "grpc-suite HOST:PORT RUN PARALLEL NAME..." << std::endl;
    return 2;
  }
  getLogger().setLevel(Level::Info);
  getLogger().setConsoleLevel(Level::Error);
  getLogger().init();
  std::vector<std::string> names(arguments + 4, arguments + count);
  std::size_t next = 0;
  std::mutex taking;
  std::vector<std::thread> workers;
  for (int i = 0; i < std::stoi(arguments[3]); i++) {
    workers.emplace_back([&] {
      for (;;) {
        std::string name;
        {
          std::lock_guard<std::mutex> lock(taking);
          if (next == names.size()) {
            return;
          }
          name = names[next++];
        }
        perform(arguments[1], arguments[2], name);
      }
    });
  }
  for (auto& worker : workers) {
    worker.join();
  }
  std::fflush(nullptr);
  _exit(0);  // what the clients still wait for matters to nobody
}
