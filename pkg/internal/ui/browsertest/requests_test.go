//go:build browser

package browsertest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// serveOrders is a service that a task calls: it accepts orders with a key, and echoes what it got.
func serveOrders(t *testing.T) (address string) {
	t.Helper()
	address, _ = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("X-Key") == "" {
			w.WriteHeader(http.StatusForbidden)
		} else {
			w.WriteHeader(http.StatusCreated)
		}
		fmt.Fprintf(w, `{"order": {"id": "o-17"}, "key": %q, "got": %s}`, r.Header.Get("X-Key"), body)
	}))

	return address
}

// A task that sends a request is made in the form and the YAML, runs, fails and is sent again from its dead-letter run.
func TestEdit_Request(t *testing.T) {
	_, err := fixture.api.Secrets.Set(t.Context(), "default", "orders", client.SecretRequest{Values: map[string]string{"KEY": "k3y/gehörtmir"}})
	must(t, err)
	target := serveOrders(t)

	p := chrome.newTab(t)
	p.open("/ui/tasks/new")
	p.screenshot("request-new-command-light")
	if eval[bool](p, `document.getElementById("f-action-http-url").checkVisibility() || !document.getElementById("f-process").checkVisibility()`) {
		t.Error("a command has the fields of a request")
	}

	p.fill("f-name", "order")
	p.fill("f-schedule", "@manual")
	choose(p, "f-kind", "http")
	if eval[bool](p, `!document.getElementById("f-action-http-url").checkVisibility() || document.getElementById("f-process").checkVisibility()`) {
		t.Error("a request has the fields of a command")
	}
	p.fill("f-action-http-url", "http://"+target+"/orders/${run.scheduled_time}")
	p.fill("f-headers", "X-Key: ${secret:orders/KEY}")
	p.fill("f-body", `{"day": "${run.scheduled_time}"}`)
	p.fill("f-action-http-expect-status", "201")
	p.await(`document.getElementById("f-yaml").value.includes("orders/KEY") && /status:.*201/s.test(document.getElementById("f-yaml").value)`)

	// What has no field is in the YAML.
	yaml := strings.Replace(eval[string](p, `document.getElementById("f-yaml").value`), "    expect:", "    results: {id: /order/id}\n    expect:", 1)
	eval[bool](p, `(() => { const el = document.getElementById("f-yaml"); el.focus(); el.value = `+quote(yaml)+`; return el.dispatchEvent(new Event("input", { bubbles: true })); })()`)
	p.await(`document.querySelector("#form-fields [name=base]").value.includes("/order/id")`)
	p.screenshot("request-new-light")
	p.axe()
	for _, dark := range []bool{false, true} {
		p.size(320, 700)
		p.dark(dark)
		p.checkWidth()
		p.screenshot(fmt.Sprintf("request-new-320-dark-%t", dark))
	}
	p.size(1280, 900)
	p.screenshot("request-new-dark")
	p.axe()
	p.dark(false)
	p.clickText("Create")
	p.awaitPage("/ui/tasks/default/order")
	p.screenshot("request-task-light")

	s, err := fixture.api.Tasks.Get(t.Context(), "default", "order")
	must(t, err)
	if h := s.Action.HTTP; h == nil || h.Headers["X-Key"] != "${secret:orders/KEY}" || h.Results["id"] != "/order/id" || len(h.JSON) == 0 || h.Expect.Status[0] != "201" {
		t.Fatalf("the task is %+v", s.Action.HTTP)
	}

	// The page of the run shows the response and its results, without the secret.
	id, err := fixture.trigger(t.Context(), "order")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Succeeded))
	p.open("/ui/runs/default/" + id)
	p.await(`document.getElementById("output").innerText.includes('"id": "o-17"') && document.body.innerText.includes("201")`)
	if text := eval[string](p, `document.body.innerText`); strings.Contains(text, "k3y/") || strings.Contains(text, "örtmir") { // random IDs contain neither
		t.Errorf("the page shows the secret:\n%s", text)
	}
	p.screenshot("request-run-light")
	p.axe()

	// Without its header the request is refused. It is dead until somebody sends it again.
	p.open("/ui/tasks/default/order/edit")
	p.fill("f-headers", " ")
	p.await(`!document.getElementById("f-yaml").value.includes("orders/KEY")`)
	p.clickText("Save")
	p.awaitPage("/ui/tasks/default/order")
	id, err = fixture.trigger(t.Context(), "order")
	must(t, err)
	must(t, fixture.awaitRun(t.Context(), id, task.Failed))
	p.open("/ui/runs/default/" + id)
	p.await(`document.body.innerText.includes("403")`)
	p.screenshot("request-failed-light")
	p.size(320, 700)
	p.dark(true)
	p.checkWidth()
	p.screenshot("request-failed-320-dark")
	p.size(1280, 900)
	p.dark(false)
	p.clickText("Retry")
	p.await(`location.pathname !== "/ui/runs/default/` + id + `" || document.body.innerText.includes("etried")`)
	p.screenshot("request-retried-light")
	p.checkPolicy()
}

// A run whose target is down waits, and its page says why. When the target is back, the page shows its response.
func TestRun_TargetDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())

	s := task.Defaults()
	s.Namespace, s.Name, s.Schedule = "default", "order-down", task.Schedules{"@manual"}
	s.Action = task.Action{HTTP: &task.HTTP{URL: "http://" + address + "/orders", Body: "one"}}
	_, err = fixture.api.Tasks.Create(t.Context(), "default", s)
	must(t, err)
	id, err := fixture.trigger(t.Context(), "order-down")
	must(t, err)

	p := chrome.newTab(t)
	p.open("/ui/runs/default/" + id)
	p.await(`document.body.innerText.includes("connection refused")`)
	p.screenshot("request-down-light")
	p.axe()
	p.size(320, 700)
	p.dark(true)
	p.checkWidth()
	p.screenshot("request-down-320-dark")
	p.size(1280, 900)
	p.dark(false)

	l, err = net.Listen("tcp", address)
	must(t, err)
	target := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "it is back") })}
	go func() { _ = target.Serve(l) }() // ends with an error when the server is closed
	t.Cleanup(func() { _ = target.Close() })
	must(t, fixture.awaitRun(t.Context(), id, task.Succeeded))
	p.await(`document.getElementById("output").innerText.includes("it is back")`)
	p.screenshot("request-back-light")
	p.checkPolicy()
}

// choose selects an option of a field, as a person does.
func choose(p *tab, id, value string) {
	p.t.Helper()
	eval[bool](p, `(() => { const el = document.getElementById(`+quote(id)+`); el.focus(); el.value = `+quote(value)+`; return el.dispatchEvent(new Event("input", { bubbles: true })); })()`)
}
