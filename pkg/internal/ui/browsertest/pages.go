// Package browsertest tests the Web UI in a real Chromium, against a real node with an embedded etcd. Its tests have the
// build tag browser, because they need Chromium and a program that was built: run them with make ui-test.
//
// Each page of Pages is opened once. In light colors, axe-core checks all its rules; in dark colors, only contrasts; at a
// width of 320 pixels, the sizes of targets and that the page does not scroll sideways. A page must not violate its Content
// Security Policy, write errors to the console, or load anything from elsewhere. Screenshots are written to build/ui.
//
// The other tests are what people and networks do: keys only, two people who edit one task, a session that ends, a node that
// dies, a proxy that cuts streams.
package browsertest

// Page is a page of the Web UI that the tests open.
type Page struct {
	// Screen is the name of the screen, as in package ui; "" for pages that are not a screen.
	Screen string
	// Name is the name of its screenshots.
	Name string
	// Path is its path and query. {failed}, {running}, {flow}, {flow-active} and {flow-map} stand for runs of the test cluster.
	Path string
	// Public pages are opened without a session.
	Public bool
}

// Pages are the pages that the tests open: at least one for each screen.
var Pages = []Page{
	{Screen: "now", Name: "now", Path: "/ui"},
	{Screen: "tasks", Name: "tasks", Path: "/ui/tasks"},
	{Screen: "tasks", Name: "tasks-none", Path: "/ui/tasks?q=name~nothing"},
	{Screen: "tasks", Name: "tasks-error", Path: "/ui/tasks?q=stat:failed"},
	{Screen: "deleted", Name: "deleted", Path: "/ui/tasks/deleted"},
	{Screen: "task", Name: "task", Path: "/ui/tasks/default/nightly-report"},
	{Screen: "task", Name: "task-hostile", Path: "/ui/tasks/default/hostile"},
	{Screen: "task", Name: "task-paused", Path: "/ui/tasks/default/legacy-sync?do=pause"},
	{Screen: "task", Name: "task-runs", Path: "/ui/tasks/default/nightly-report?tab=runs"},
	{Screen: "task", Name: "task-ledger", Path: "/ui/tasks/default/short-memory?tab=runs"},
	{Screen: "task", Name: "task-graph", Path: "/ui/tasks/default/orders-report?tab=graph"},
	{Screen: "task", Name: "task-no-graph", Path: "/ui/tasks/default/ticker?tab=graph"},
	{Screen: "task", Name: "task-steps", Path: "/ui/tasks/default/orders-flow?tab=steps&step=load"},
	{Screen: "task", Name: "task-stats", Path: "/ui/tasks/default/ticker?tab=stats"},
	{Screen: "task", Name: "task-versions", Path: "/ui/tasks/default/backup-db?tab=versions&to=1"},
	{Screen: "task", Name: "task-definition", Path: "/ui/tasks/default/backup-db?tab=definition"},
	{Screen: "new", Name: "new", Path: "/ui/tasks/new"},
	{Screen: "new", Name: "new-workflow", Path: "/ui/tasks/new?workflow=1"},
	{Screen: "edit", Name: "edit", Path: "/ui/tasks/default/backup-db/edit"},
	{Screen: "edit", Name: "edit-workflow", Path: "/ui/tasks/default/orders-flow/edit"},
	{Screen: "bulk", Name: "bulk-pause", Path: "/ui/tasks/bulk?do=pause&scope=all"},
	{Screen: "bulk", Name: "bulk-delete", Path: "/ui/tasks/bulk?do=delete&task=default/ticker"},
	{Screen: "runs", Name: "runs", Path: "/ui/runs"},
	{Screen: "run", Name: "run", Path: "/ui/runs/default/{running}"},
	{Screen: "run", Name: "run-failed", Path: "/ui/runs/default/{failed}"},
	{Screen: "run", Name: "run-flow", Path: "/ui/runs/default/{flow}?step=load"},
	{Screen: "run", Name: "run-flow-retry", Path: "/ui/runs/default/{flow}?step=load&do=retry"},
	{Screen: "run", Name: "run-flow-active", Path: "/ui/runs/default/{flow-active}?step=clean&do=cancel"},
	{Screen: "run", Name: "run-flow-map", Path: "/ui/runs/default/{flow-map}?step=load"},
	{Screen: "alerts", Name: "alerts", Path: "/ui/alerts"},
	{Screen: "alerts", Name: "alerts-silence", Path: "/ui/alerts?do=silence&in=default&tasks=nightly-report&of=nightly-report"},
	{Screen: "task", Name: "task-alert", Path: "/ui/tasks/default/nightly-report"},
	{Screen: "task", Name: "task-receiver", Path: "/ui/tasks/default/slack"},
	{Screen: "load", Name: "load", Path: "/ui/load"},
	{Screen: "nodes", Name: "nodes", Path: "/ui/nodes"},
	{Screen: "node", Name: "node", Path: "/ui/nodes/dev"},
	{Screen: "shards", Name: "shards", Path: "/ui/shards"},
	{Screen: "why", Name: "why", Path: "/ui/why/default/nightly-report"},
	{Screen: "events", Name: "events", Path: "/ui/events"},
	{Screen: "health", Name: "health", Path: "/ui/health"},
	{Name: "no-page", Path: "/ui/no-such-page"},
	{Name: "login", Path: "/ui/login", Public: true},
	{Name: "docs", Path: "/docs/", Public: true},
	{Name: "docs-page", Path: "/docs/how-to/alerts.html", Public: true},
	{Name: "docs-tables", Path: "/docs/comparison.html", Public: true},
}
