"""The chat page in headless Chromium: against the real program with the demo model, and against a pretended server for what
a small model does not do on demand. Every test fails on console errors, on breaches of the page's policy, and on any request
to somewhere else."""

import contextlib
import json
import pathlib
import re
import shutil
import sys
import time

import pytest
from playwright.sync_api import expect, sync_playwright
from scripted import line, serve_script
from serving import ROOT, serve

sys.path.insert(0, str(ROOT / "tests" / "page"))
import mock_server  # noqa: E402  (needs the path above)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 180_000  # milliseconds; nothing here is a measurement

# Notes what the page's policy stopped, where the test can read it.
WATCH_POLICY = "window.breaches = []; document.addEventListener('securitypolicyviolation', (e) => window.breaches.push(e.violatedDirective + ' ' + e.blockedURI));"


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def real():
    with serve() as running:
        yield running


@pytest.fixture
def mock():
    with mock_server.Server() as server:
        yield server


class Chat:
    """A page, and what its user does with it."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.complaints = []
        # Errors that the page asked for by provoking them are shown by the browser too.
        page.on("console", lambda m: self.note(m.text) if m.type in ("error", "warning") and "Failed to load resource" not in m.text else None)
        page.on("pageerror", lambda error: self.note(str(error)))
        page.on("request", lambda request: self.note(f"request to {request.url}") if not request.url.startswith((url + "/", "data:", "blob:")) else None)

    def note(self, text):
        self.complaints.append(text)

    def load(self):
        self.page.goto(self.url + "/")
        expect(self.send).to_be_enabled()
        return self

    def at(self, selector):
        return self.page.locator(selector)

    @property
    def send(self):
        return self.page.get_by_role("button", name="Send", exact=True)

    @property
    def stop(self):
        return self.page.get_by_role("button", name="Stop", exact=True)

    @property
    def field(self):
        return self.page.get_by_label("Message", exact=True)

    @property
    def answer(self):
        return self.at(".answer").last

    def ask(self, text, wait=True):
        self.field.fill(text)
        self.send.click()
        if wait:
            self.wait()

    def wait(self):
        expect(self.stop).to_be_hidden()
        expect(self.at(".answer.running")).to_have_count(0)

    def reload(self):
        self.page.reload()
        expect(self.send).to_be_enabled()

    def until(self, expression):
        """Waits for it to be true. Not wait_for_function, which needs eval() and so is stopped by the page's policy."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def settings(self):
        self.page.get_by_role("button", name="Settings").click()

    def close_settings(self):
        self.page.get_by_role("button", name="Close settings").click()


@pytest.fixture
def open_page(browser):
    """`open_page(url, width=..., ...)` is a Chat in a fresh profile."""
    with contextlib.ExitStack() as stack:
        opened = []

        def make(url, width=1280, height=800, load=True, **more):
            context = browser.new_context(viewport={"width": width, "height": height}, **more)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            context.add_init_script(WATCH_POLICY)
            chat = Chat(context.new_page(), url)
            opened.append(chat)
            return chat.load() if load else chat

        yield make
        for chat in opened:
            assert chat.complaints == []
            assert chat.page.evaluate("window.breaches") == []


# ---- the real program


def test_the_demo_model_answers_with_its_thought_folded(real, open_page):
    chat = open_page(real.url)
    chat.ask("What is 17 + 25?")
    expect(chat.answer.locator(".text")).to_contain_text("42")
    thought = chat.answer.locator("details.thought")
    expect(thought).to_be_visible()
    assert thought.get_attribute("open") is None
    expect(thought.locator("summary")).to_contain_text("Thought for")
    thought.locator("summary").click()
    expect(thought.locator(".thought-text")).not_to_be_empty()
    statistics = chat.answer.locator(".statistics").inner_text()
    assert re.search(r"demo · [\d.,]+ tok/s · \d+ tokens \(\d+ thinking\) · prompt \d+", statistics)


def test_a_second_turn_and_a_reload_keep_the_conversation(real, open_page):
    chat = open_page(real.url)
    chat.ask("What is 17 + 25?")
    chat.ask("What is 3 + 4?")
    expect(chat.at(".answer")).to_have_count(2)
    before = chat.at(".answer .text").all_inner_texts()
    chat.reload()
    assert chat.at(".answer .text").all_inner_texts() == before
    expect(chat.at(".bubble").first).to_have_text("What is 17 + 25?")
    expect(chat.at(".sidebar .chat")).to_have_text(["What is 17 + 25?"])


def test_the_real_answers_files_carry_the_policy(real, open_page):
    chat = open_page(real.url, load=False)
    response = chat.page.goto(real.url + "/")
    assert response.headers["content-security-policy"] == mock_server.content_security_policy()
    assert response.headers["x-content-type-options"] == "nosniff"
    again = chat.page.request.get(real.url + "/page/app.js", headers={"If-None-Match": chat.page.request.get(real.url + "/page/app.js").headers["etag"]})
    assert again.status == 304


def test_thinking_off_and_a_limit_reach_the_real_model(real, open_page):
    chat = open_page(real.url)
    chat.page.get_by_label("Thinking", exact=True).select_option("off")
    chat.ask("What is 17 + 25?")
    expect(chat.answer.locator("details.thought")).to_be_hidden()
    chat.settings()
    chat.page.get_by_label("Longest answer, tokens").fill("2")
    chat.close_settings()
    chat.ask("Who are you?")
    expect(chat.answer).to_contain_text("Ended at the length limit.")
    expect(chat.answer.locator(".statistics")).to_contain_text("2 tokens")


def test_a_real_answer_is_stopped_and_asked_again(open_page):
    # Held up, so that the Stop button is there for longer than any machine takes to press it.
    with serve_script([line("Stop me", "Too late.", stall_s=8)]) as running:
        chat = open_page(running.url)
        chat.ask("Stop me", wait=False)
        chat.stop.click()
        chat.wait()
        chat.at(".answer [aria-label='Answer again'], .answer .error button").last.click()
        chat.wait()
        expect(chat.at(".answer")).to_have_count(1)
        expect(chat.answer).to_contain_text("Too late.")


def test_a_key_is_asked_for_and_kept_for_the_tab(open_page):
    with serve("--api-key", "secret-1") as running:
        chat = open_page(running.url)
        key = chat.page.get_by_label("API key")
        expect(key).to_be_focused()
        key.fill("wrong")
        key.press("Tab")
        expect(chat.at("#key-error")).to_contain_text("did not accept")
        key.fill("secret-1")
        key.press("Enter")
        expect(chat.at("#model-name")).to_have_text("demo")
        chat.ask("What is 17 + 25?")
        expect(chat.answer.locator(".text")).to_contain_text("42")
        chat.reload()
        expect(chat.at("#model-name")).to_have_text("demo")
        assert chat.page.evaluate("localStorage.getItem('glint.key')") is None


# ---- answers


def test_an_answer_appears_while_it_is_written_and_stops_at_once(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("endless", wait=False)
    expect(chat.answer.locator(".text")).to_contain_text("and so on")
    expect(chat.answer).to_have_attribute("aria-busy", "true")
    chat.stop.click()
    chat.wait()
    expect(chat.answer).to_contain_text("Stopped.")
    assert mock.mock.gone.wait(20)
    shown = chat.answer.locator(".text").inner_text()
    chat.reload()
    assert chat.answer.locator(".text").inner_text() == shown


def test_escape_stops_and_a_reload_in_the_middle_keeps_what_was_there(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("endless", wait=False)
    expect(chat.answer.locator(".text")).to_contain_text("and so on")
    chat.page.keyboard.press("Escape")
    chat.wait()
    expect(chat.field).to_be_focused()
    chat.ask("endless again", wait=False)
    expect(chat.answer.locator(".text")).to_contain_text("and so on")
    chat.reload()
    expect(chat.answer.locator(".text")).to_contain_text("and so on")
    expect(chat.answer).to_contain_text("Stopped.")


def test_the_thought_is_open_while_it_grows_and_folds_when_the_answer_begins(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("thinking", wait=False)
    thought = chat.answer.locator("details.thought")
    expect(thought).to_have_attribute("open", "")
    expect(thought.locator("summary")).to_contain_text(re.compile(r"Thinking… \d"))
    expect(thought.locator(".thought-text")).to_contain_text("First, what is asked?")
    mock.mock.release.set()
    chat.wait()
    assert thought.get_attribute("open") is None
    expect(thought.locator("summary")).to_contain_text("Thought for")


def test_markdown_becomes_elements(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("markdown please")
    text = chat.answer.locator(".text")
    expect(text.locator(".h-1")).to_have_text("Merging two lists")
    expect(text.locator("em").first).to_have_text("smaller")
    expect(text.locator("strong").first).to_have_text("O(n + m)")
    links = text.locator("a")
    assert [a.get_attribute("href") for a in links.all()] == ["https://example.org/merge?a=1&b=2", "https://example.org/x_y_z"]
    assert all("noopener" in a.get_attribute("rel") and a.get_attribute("target") == "_blank" for a in links.all())
    expect(text.locator(".code-head").first).to_contain_text("python")
    expect(text.locator("pre .c-keyword").first).to_have_text("def")
    assert "    while i < len(left) and j < len(right):\n" in text.locator("pre code").inner_text()
    expect(text.locator("tbody tr")).to_have_count(2)
    expect(text.locator("td.right").first).to_have_text("2,000")
    expect(text.locator("ol > li")).to_have_count(3)
    expect(text.locator("ol > li > ul > li")).to_have_count(2)
    expect(text.locator("li.task input")).to_have_count(2)
    expect(text.locator("blockquote")).to_contain_text("half the work")
    expect(text.locator(".math")).to_have_text("$T(n) = 2T(n/2) + O(n)$")
    expect(text).to_contain_text("costs $5 more than $4")
    expect(text.locator("hr")).to_have_count(1)


# The same for every way of cutting a text into pieces: what has been drawn piece by piece is what is drawn at once.
CUTS = """async ([text, step]) => {
  const { MarkdownView } = await import("./page/markdown.js");
  const draw = (cuts) => {
    const root = document.createElement("div");
    const view = new MarkdownView(root);
    for (const cut of cuts) view.update(text.slice(0, cut), cut < text.length);
    view.update(text, false);
    root.querySelectorAll("[checked]").forEach((box) => box.setAttribute("checked", ""));
    root.normalize();
    return root.outerHTML;
  };
  const whole = draw([]);
  const cuts = [];
  for (let at = step; at <= text.length; at += step) cuts.push(at);
  return [whole, draw(cuts)];
}"""

ODD_TEXTS = [
    "",
    "\n\n\n",
    "a\n- b\n\n  c\n- d\n\n\ne",
    "- a\n  ```py\n  x = 1\n  ```\n- b\n\n```\nopen to the end",
    "~~~\n```\n~~~\nafter\n````md\n```\n````",
    "| a | b |\n|---|---|\n| 1 | 2 |\nno bar\n\n| a |\n|---|---|\n",
    "***both* bold** _a_b_ **open\n\n* * *\n*not closed `code",
    "> a\nlazy\n> - b\n> > c\n\n1. x\n\n   y\n2. z\n10) other",
    "$$\na_1 * b_2\n+ c\n$$\nand \\(x*y*z\\) \\[q\\]\n\\*no\\* &lt;b&gt; a<br>b",
    "# \n## two ##\n#none\n```\n```\n\n```js\n`x`\n``\n```",
    "[a](https://e.org/(x)) [b] (c) [d](ftp://e) ![i](https://e.org/i.png \"t\") [**e**](https://e.org) <https://e.org>",
]


@pytest.mark.parametrize("step", [1, 2, 7])
def test_a_text_drawn_in_pieces_is_the_text_drawn_at_once(mock, open_page, step):
    chat = open_page(mock.url)
    for text in [mock_server.MARKDOWN, mock_server.HOSTILE, *ODD_TEXTS]:
        whole, pieces = chat.page.evaluate(CUTS, [text, step])
        assert pieces == whole, text


def test_no_text_is_slow_to_draw(mock, open_page):
    chat = open_page(mock.url)
    measure = """async (text) => {
      const { MarkdownView } = await import("./page/markdown.js");
      const begun = performance.now();
      new MarkdownView(document.createElement("div")).update(text, false);
      return performance.now() - begun;
    }"""
    for piece in ["*a _b ", "[", "`" * 3 + " ` ", "![](", "> ", "- ", "  " * 20 + "- a\n", "| ", "<", "$a ", "**", "http://", "a\n|--|\n", "\\(", "&amp;", "* * "]:
        text = piece * (60_000 // len(piece))
        assert chat.page.evaluate(measure, text) < 20_000, piece


def test_text_of_model_and_user_is_never_markup(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("hostile <img src=x onerror='window.hacked=1'><script>window.hacked=1</script>")
    chat.answer.locator("summary").click()
    chat.page.wait_for_timeout(200)
    assert chat.page.evaluate("window.hacked") is None
    assert chat.at("#messages :is(script, img, iframe, style, object, embed, link)").count() == 0
    assert all(href.startswith("https://") for href in (a.get_attribute("href") for a in chat.at("#messages a").all()))
    expect(chat.answer.locator(".text")).to_contain_text('<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">')
    expect(chat.at(".bubble")).to_contain_text("<script>window.hacked=1</script>")
    expect(chat.at(".sidebar .chat")).to_contain_text("<img src=x")


def test_a_long_answer_leaves_the_page_quick_and_is_not_drawn_anew(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("code", wait=False)
    expect(chat.answer.locator("pre")).to_be_visible()
    first = chat.answer.locator("pre .c-keyword").first.element_handle()
    chat.wait()
    assert first.evaluate("(node) => node.isConnected")
    assert chat.answer.locator("pre code").inner_text().count("\n") == 602
    expect(chat.answer).to_contain_text("That was long.")


def test_the_page_follows_the_answer_only_at_its_end(mock, open_page):
    chat = open_page(mock.url, height=500)
    chat.ask("endless", wait=False)
    scroll = "document.getElementById('scroll')"
    chat.until(f"{scroll}.scrollHeight > 2 * {scroll}.clientHeight")
    at_end = f"{scroll}.scrollHeight - {scroll}.scrollTop - {scroll}.clientHeight < 100"
    chat.until(at_end)
    chat.page.mouse.move(640, 200)
    chat.page.mouse.wheel(0, -10_000)
    expect(chat.page.get_by_role("button", name="To the latest message")).to_be_visible()
    before = chat.page.evaluate(f"[{scroll}.scrollTop, {scroll}.scrollHeight]")
    chat.until(f"{scroll}.scrollHeight > {before[1]}")
    assert chat.page.evaluate(f"{scroll}.scrollTop") == before[0]
    chat.page.get_by_role("button", name="To the latest message").click()
    chat.until(at_end)
    chat.stop.click()


def test_calls_are_shown_and_their_results_go_back(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("calls")
    calls = chat.answer.locator(".call")
    expect(calls).to_have_count(2)
    expect(calls.first.locator(".call-head")).to_have_text("get_weather")
    shown = calls.first.locator("pre code").inner_text()
    assert json.loads(shown) == json.loads(mock_server.TOOL_ARGUMENTS)
    assert '\n  "city": "Paris",\n' in shown and "9007199254740993" in shown
    chat.page.get_by_label("Result of get_weather").fill("rain")
    chat.page.get_by_label("Result of get_time").fill("noon")
    chat.page.get_by_role("button", name="Send results").click()
    chat.wait()
    expect(chat.answer.locator(".text")).to_have_text("The tools say: rain, noon.")
    sent = mock.mock.requests[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": mock_server.TOOL_ARGUMENTS}
    assert sent[1]["reasoning_content"] == "I need the weather and the time."
    assert [message["tool_call_id"] for message in sent[2:]] == ["call_0", "call_1"]


def test_progress_is_shown_while_the_prompt_is_read(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("slow", wait=False)
    expect(chat.answer).to_contain_text("Reading the prompt: 3,000 of 8,000 tokens (1,000 cached)")
    assert chat.answer.locator("progress").evaluate("(bar) => bar.value / bar.max") == 3 / 8
    assert mock.mock.requests[-1]["return_progress"] is True
    mock.mock.release.set()
    chat.wait()
    expect(chat.answer.locator("progress")).to_have_count(0)


# ---- failures


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("broken", "The engine met a number that is not finite."),
        ("cut", "The server ended the answer in the middle."),
        ("context", "maximum context length is 32768 tokens"),
    ],
)
def test_errors_are_shown_in_their_place(mock, open_page, text, message):
    chat = open_page(mock.url)
    chat.ask(text)
    expect(chat.answer.get_by_role("alert")).to_contain_text(message)
    if text != "context":
        expect(chat.answer.locator(".text")).to_contain_text("This begins well but")
    chat.reload()
    expect(chat.answer.get_by_role("alert")).to_contain_text(message)


def test_a_failed_question_is_sent_again(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("busy")
    expect(chat.answer.get_by_role("alert")).to_contain_text("256 requests are waiting already.")
    chat.page.get_by_role("button", name="Retry").click()
    chat.wait()
    expect(chat.answer.locator(".text")).to_have_text("You said: busy")
    assert mock.mock.requests[-1]["messages"] == [{"role": "user", "content": "busy"}]


def test_a_server_that_loads_or_is_away_is_waited_for(mock, open_page):
    mock.mock.status = "loading"
    chat = open_page(mock.url, load=False)
    chat.page.goto(mock.url)
    expect(chat.page.get_by_role("status").filter(has_text="loading")).to_be_visible()
    expect(chat.send).to_be_disabled()
    chat.field.fill("hello")
    chat.field.press("Enter")
    expect(chat.field).to_have_value("hello")
    mock.mock.status = "ok"
    expect(chat.send).to_be_enabled()
    chat.field.press("Enter")
    chat.wait()
    expect(chat.answer.locator(".text")).to_have_text("You said: hello")


# ---- conversations and settings


def test_conversations_are_made_renamed_exported_deleted_and_brought_back(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("first subject")
    chat.page.get_by_role("button", name="New conversation").click()
    expect(chat.at(".message")).to_have_count(0)
    chat.ask("second subject")
    expect(chat.at(".sidebar .chat")).to_have_text(["second subject", "first subject"])
    menu = chat.page.get_by_role("button", name="This conversation")
    menu.click()
    chat.page.get_by_role("button", name="Rename").click()
    chat.page.get_by_label("Title of this conversation").fill("Renamed <b>")
    chat.page.keyboard.press("Enter")
    expect(chat.at("h1")).to_have_text("Renamed <b>")
    menu.click()
    with chat.page.expect_download() as info:
        chat.page.get_by_role("button", name="Export as JSON").click()
    exported = json.loads(pathlib.Path(info.value.path()).read_text())
    assert info.value.suggested_filename == "renamed-b.json"
    assert [(m["role"], m["content"]) for m in exported["messages"]] == [("user", "second subject"), ("assistant", "You said: second subject")]
    menu.click()
    chat.page.get_by_role("button", name="Delete", exact=True).click()
    expect(chat.at(".sidebar .chat")).to_have_text(["first subject"])
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.at(".sidebar .chat")).to_have_text(["Renamed <b>", "first subject"])
    expect(chat.at(".bubble")).to_have_text("second subject")
    chat.at(".sidebar .chat").last.click()
    expect(chat.at(".bubble")).to_have_text("first subject")


def test_an_exported_conversation_is_imported_and_rubbish_is_not(mock, open_page, tmp_path):
    chat = open_page(mock.url)
    good = {"id": "x", "title": "Brought along", "messages": [{"role": "user", "content": "hi"}, {"role": "root"}, 7, {"role": "assistant", "content": "ho", "calls": {}}]}
    for name, text in [("good.json", json.dumps([good, None, {"messages": 3}])), ("bad.json", "{")]:
        (tmp_path / name).write_text(text)
    chat.settings()
    chat.at("#import-file").set_input_files(tmp_path / "bad.json")
    expect(chat.at("#notice")).to_contain_text("not JSON")
    chat.at("#import-file").set_input_files(tmp_path / "good.json")
    expect(chat.at("#notice")).to_contain_text("1 imported")
    chat.close_settings()
    chat.page.get_by_role("button", name="Brought along").click()
    expect(chat.answer.locator(".text")).to_have_text("ho")


def test_two_conversations_answer_at_the_same_time(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("thinking", wait=False)
    expect(chat.at("details.thought")).to_be_visible()
    chat.page.get_by_role("button", name="New conversation").click()
    chat.ask("quick")
    expect(chat.answer.locator(".text")).to_have_text("You said: quick")
    expect(chat.at(".chat-running")).to_have_count(1)
    chat.at(".sidebar .chat", ).filter(has_text="thinking").click()
    expect(chat.answer).to_have_attribute("aria-busy", "true")
    mock.mock.release.set()
    chat.wait()
    expect(chat.answer.locator(".text")).to_have_text("Thought enough.")


def test_settings_are_kept_and_sent(mock, open_page):
    chat = open_page(mock.url)
    chat.settings()
    chat.page.get_by_label("System prompt").fill("Be brief.")
    chat.page.get_by_label("Temperature").fill("0.3")
    chat.page.get_by_label("Longest answer, tokens").fill("77")
    chat.page.get_by_role("radio", name="Off").check(force=True)
    chat.page.get_by_role("radio", name="Dark").check(force=True)
    chat.page.get_by_text("Tools", exact=True).click()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    chat.page.get_by_label("Tools the model may call").fill(json.dumps(tools))
    chat.close_settings()
    chat.reload()
    assert chat.page.evaluate("document.documentElement.dataset.theme") == "dark"
    chat.ask("hello")
    sent = mock.mock.requests[-1]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert (sent["temperature"], sent["max_tokens"], sent["thinking"], sent["tools"]) == (0.3, 77, {"type": "disabled"}, tools)
    assert sent["stream_options"]["include_usage"] is True
    chat.settings()
    expect(chat.page.get_by_label("Temperature")).to_have_value("0.3")


def test_settings_left_alone_are_not_sent_and_wrong_ones_are_named(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("hello")
    assert set(mock.mock.requests[-1]) == {"model", "messages", "stream", "stream_options", "return_progress"}
    chat.settings()
    chat.page.get_by_label("Temperature").fill("-1")
    expect(chat.at("#temperature-error")).to_contain_text("A number from 0")
    chat.page.get_by_text("Tools", exact=True).click()
    chat.page.get_by_label("Tools the model may call").fill("{]")
    expect(chat.at("#tools-error")).to_contain_text("not JSON")
    chat.close_settings()
    chat.ask("hello again")
    assert not {"temperature", "tools"} & set(mock.mock.requests[-1])


def test_the_last_message_is_edited_and_the_answer_made_anew(mock, open_page):
    chat = open_page(mock.url)
    chat.ask("one")
    chat.ask("two")
    chat.page.get_by_role("button", name="Answer again").click()
    chat.wait()
    expect(chat.at(".message")).to_have_count(4)
    assert [m["content"] for m in mock.mock.requests[-1]["messages"]] == ["one", "You said: one", "two"]
    chat.at(".user").last.hover()
    chat.page.get_by_role("button", name="Edit message").click()
    expect(chat.field).to_have_value("two")
    chat.field.fill("three")
    chat.field.press("Enter")
    chat.wait()
    assert [m["content"] for m in mock.mock.requests[-1]["messages"]] == ["one", "You said: one", "three"]
    expect(chat.at(".bubble")).to_have_text(["one", "three"])


def test_with_several_models_one_is_chosen(mock, open_page):
    mock.mock.models = ["first", "second"]
    chat = open_page(mock.url)
    chat.page.get_by_label("Model", exact=True).select_option("second")
    chat.ask("hello")
    assert mock.mock.requests[-1]["model"] == "second"
    expect(chat.answer.locator(".statistics")).to_contain_text("second")


def test_what_is_copied_is_the_text(mock, open_page):
    chat = open_page(mock.url, permissions=["clipboard-read", "clipboard-write"])
    chat.ask("markdown")
    chat.page.get_by_role("button", name="Copy code").click()
    chat.until("navigator.clipboard.readText().then((text) => text.startsWith('def merge(left, right):\\n    '))")
    chat.page.get_by_role("button", name="Copy answer").click()
    chat.until("navigator.clipboard.readText().then((text) => text.startsWith('# Merging'))")
    assert chat.page.evaluate("navigator.clipboard.readText()") == mock_server.MARKDOWN
    expect(chat.at("#announce")).to_have_text("Copied")


# ---- everybody


def test_the_keyboard_is_enough_to_ask_edit_and_set(mock, open_page):
    chat = open_page(mock.url)
    keyboard = chat.page.keyboard
    expect(chat.field).to_be_focused()
    keyboard.type("first line")
    keyboard.press("Shift+Enter")
    keyboard.type("second line")
    keyboard.press("Enter")
    chat.wait()
    expect(chat.at(".bubble")).to_have_text("first line\nsecond line")
    expect(chat.field).to_be_focused()
    keyboard.press("ArrowUp")
    expect(chat.field).to_have_value("first line\nsecond line")
    keyboard.press("Escape")
    expect(chat.field).to_have_value("")
    chat.page.get_by_role("button", name="Settings").focus()
    keyboard.press("Enter")
    expect(chat.page.get_by_role("dialog", name="Settings")).to_be_visible()
    keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog", name="Settings")).to_be_hidden()
    expect(chat.page.get_by_role("button", name="Settings")).to_be_focused()


# What a checker of accessibility looks for first, by hand.
AUDIT = """() => {
  const wrong = [];
  const shown = (e) => e.checkVisibility({ visibilityProperty: true });
  const nameOf = (e) => e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") && document.getElementById(e.getAttribute("aria-labelledby"))?.textContent) ||
    [...(e.labels ?? [])].map((l) => l.textContent).join(" ").trim() || (/^(BUTTON|A|SUMMARY)$/.test(e.tagName) ? e.textContent.trim() : "");
  for (const e of document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=region], dialog[open], nav"))
    if (shown(e) && !nameOf(e)) wrong.push("no name: " + e.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("id twice: " + id);
  for (const e of document.querySelectorAll("[aria-controls], [aria-describedby], [aria-labelledby], label[for]"))
    for (const name of ["aria-controls", "aria-describedby", "aria-labelledby", "for"])
      for (const id of (e.getAttribute(name) ?? "").split(" ").filter(Boolean)) if (!document.getElementById(id)) wrong.push("names nothing: " + id);
  if (document.querySelectorAll("h1").length !== 1 || document.querySelectorAll("main").length !== 1) wrong.push("one h1, one main");
  if (!document.documentElement.lang || !document.title) wrong.push("lang and title");
  for (const e of document.querySelectorAll("[tabindex]")) if (e.tabIndex > 0) wrong.push("tabindex above 0");
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => { const f = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  for (const e of document.querySelectorAll("body *")) {
    const hasText = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!hasText || !shown(e) || e.closest(":disabled, noscript, .off-screen, .skip, option")) continue;
    const style = getComputedStyle(e);
    if (style.color.startsWith("color")) continue;
    const [a, b] = [light(parse(style.color)), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}: ${e.className} ${e.textContent.slice(0, 40)}`);
  }
  return [...new Set(wrong)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_controls_have_names_and_text_stands_out(mock, open_page, scheme):
    chat = open_page(mock.url, color_scheme=scheme, reduced_motion="reduce")
    assert chat.page.evaluate(AUDIT) == []
    for text in ["markdown", "calls", "broken"]:
        chat.ask(text)
    for summary in chat.at("details.thought:not([hidden]) summary").all():
        summary.click()
    assert chat.page.evaluate(AUDIT) == []
    chat.settings()
    for summary in chat.at("dialog summary").all():
        summary.click()
    assert chat.page.evaluate(AUDIT) == []
    background = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in re.findall(r"\d+", background)[:3]) > 600) == (scheme == "light")


def test_a_chosen_theme_wins_over_the_systems(mock, open_page):
    chat = open_page(mock.url, color_scheme="dark")
    chat.settings()
    chat.page.get_by_role("radio", name="Light").check(force=True)
    chat.close_settings()
    chat.reload()
    assert chat.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(253, 252, 249)"


def test_with_reduced_motion_nothing_moves(mock, open_page):
    chat = open_page(mock.url, reduced_motion="reduce")
    chat.ask("slow", wait=False)
    expect(chat.at(".dots i").first).to_be_visible()
    assert chat.page.evaluate("document.getAnimations().length") == 0
    mock.mock.release.set()
    chat.wait()


@pytest.mark.parametrize("width", [360, 768])
def test_a_phone_shows_everything_without_scrolling_sideways(mock, open_page, width):
    chat = open_page(mock.url, width=width, height=700)
    overflow = "[document.documentElement.scrollWidth - innerWidth, document.getElementById('scroll').scrollWidth - document.getElementById('scroll').clientWidth]"
    for text in ["markdown", "x" * 400]:
        chat.ask(text)
        assert max(chat.page.evaluate(overflow)) <= 0, text
    box = chat.send.bounding_box()
    assert box["width"] >= 38 and box["x"] + box["width"] <= width


def test_storage_with_rubbish_in_it_does_no_harm(mock, open_page):
    chat = open_page(mock.url)
    chat.page.evaluate(
        """() => {
          localStorage.setItem("glint.settings", '{"temperature": "hot", "thinking": 7, "tools": [], "theme": "<b>"}');
          localStorage.setItem("glint.chat.broken01", "{");
          localStorage.setItem("glint.chat.broken02", '{"title": {}, "updated": "x", "messages": "none"}');
        }"""
    )
    chat.reload()
    chat.at(".sidebar .chat").first.click()
    expect(chat.at("#notice")).to_contain_text("gone")
    chat.ask("hello")
    expect(chat.answer.locator(".text")).to_have_text("You said: hello")
