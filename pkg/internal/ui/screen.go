package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Screen is a page. Its file is screen_NAME.go, with its template in templates/NAME.html.
type Screen struct {
	// Name is the name of the template, and identifies the screen.
	Name string
	// Template is the name of its template, if that is another one: templates/TEMPLATE.html.
	Template string
	// Pattern is the path, as for http.ServeMux without a method: "/ui/tasks/{ns}/{name}".
	Pattern string
	// Nav is the name of the screen in the navigation that is marked while this one is shown: its own, or that of the
	// list that it belongs to.
	Nav string
	// Title returns the title of the page. The data are those that Load has returned; they are nil if it has failed.
	Title func(v *View) string
	// Load reads what the page shows. It is called with the rights of one viewer, and what it returns is also shown to
	// others with the same rights. So it must not depend on who the viewer is. It may return data together with an error:
	// then the page shows both, for example a query that is not valid.
	Load func(ctx context.Context, r *Request) (any, error)
	// Command returns the command line that shows the same, as words.
	Command func(v *View) []string
	// Parts are the parts of the template that change while somebody watches. The template shows each of them with
	// {{$.Live "name" "tag"}}, and defines a template of that name.
	Parts []Part
	// Every is the least time between two renderings for viewers; 0 means a second.
	Every time.Duration
	// Actions are what forms on the page do.
	Actions []Action
	// Downloads are files that the page links to.
	Downloads []Download
	// Feed, if set, sends further events on the stream of each viewer, such as lines of output. Unlike Load, it is called
	// for each viewer, with that viewer's credential, and its events are not shared. It returns when ctx ends or it has
	// nothing more to send. last is the id of the last of its events that the page has received; "" if there is none.
	Feed func(ctx context.Context, r *Request, last string, send func(FeedEvent) error) error
}

// Part is a part of a screen that changes while somebody watches.
type Part struct {
	// Name is the name of the template, and the id of the element.
	Name string
	// Hold keeps the order of the rows: if rows come, go or move, the viewer sees how many, and the rows on request.
	// Rows are the elements <tr id="…"> of the part. A row that changes is updated in any case.
	Hold bool
}

// Action is what a form does. The form posts to a path that matches Pattern. Run calls the API; it needs no checks of its
// own. If it fails, the page is shown again with the error at its field, and with what was entered: the form must have a
// field "at" with the path and query of the page, {{$.At}}.
type Action struct {
	Pattern string // of the path: "/ui/tasks/{ns}/{name}/pause"
	Run     func(ctx context.Context, r *Request) (Done, error)
}

// Done is the result of an action.
type Done struct {
	To      string // the page to show next, below /ui; "" means the page with the form
	Message string // what was done: "web-1 is paused"; shown once
	// Result, if set, is shown at once on the page of the form, with what was entered: a preview, or a report that is too
	// long for a message. Load finds it in Request.Result.
	Result any
}

// screens returns all screens, in the order of the navigation.
func screens() []Screen {
	return []Screen{
		nowScreen(),
		tasksScreen(),
		bulkScreen(),
		deletedScreen(),
		taskScreen(),
		runsScreen(),
		runScreen(),
		alertsScreen(),
		newTaskScreen(),
		editTaskScreen(),
		nodesScreen(),
		nodeScreen(),
		shardsScreen(),
		whyScreen(),
		loadScreen(),
		eventsScreen(),
		healthScreen(),
	}
}

// navigation is the order of the navigation. Screens that do not exist are left out.
var navigation = []navEntry{
	{screen: "now", label: "Now", key: "n"},
	{screen: "tasks", label: "Tasks", key: "t"},
	{screen: "runs", label: "Runs", key: "r"},
	{screen: "alerts", label: "Alerts", key: "a"},
	{screen: "load", label: "Load", key: "l"},
	{screen: "nodes", label: "Nodes", key: "o"},
	{screen: "shards", label: "Shards", key: "s"},
	{screen: "events", label: "Events", key: "e"},
	{screen: "health", label: "Health", key: "h"},
}

// navEntry is an entry of the navigation.
type navEntry struct {
	screen string
	label  string
	key    string // opens the screen, after g
}

// defaultEvery is the least time between two renderings of a screen.
const defaultEvery = time.Second

func (s *Screen) every() time.Duration {
	if s.Every > 0 {
		return s.Every
	}
	return defaultEvery
}

// navPart is the part of every page with the navigation.
const navPart = "nav"

// counts are the numbers of the navigation.
type counts struct {
	known       bool
	board       task.Board // without its lists
	attention   int        // what needs a human
	ofCluster   int        // of these, problems of the cluster
	everything  bool       // the viewer reads all namespaces
	readsFleet  bool       // and the nodes
	readsStatus bool       // and the cluster
	readsAlerts bool       // the viewer reads the alerts of some namespace
}

// countsEvery is how long the counts of the navigation are used.
const countsEvery = 2 * time.Second

// boardOptions are those with which all pages read the board. So a page and its navigation share one.
var boardOptions = client.BoardOptions{Span: nowSpan, Limit: nowListed}

// countsFor returns the counts for the rights of a request. They are not known while the board cannot be read.
func (s *Server) countsFor(ctx context.Context, q *Request) counts {
	fresh := func(at time.Time) bool {
		age := q.Now.Sub(at)
		return age >= 0 && age < countsEvery
	}

	c, err := s.counts.get(ctx, q, fresh, func(ctx context.Context) (counts, error) {
		board, err := q.API.Board.Get(ctx, boardOptions)
		if err != nil {
			return counts{}, err
		}

		problems := overview.Problems(&board)
		c := counts{known: true, board: board, attention: overview.Attention(problems), ofCluster: overview.Attention(overview.OfCluster(problems)), everything: q.ReadsEverything()}
		nodes := board.Nodes
		c.board.BoardLists, c.board.Nodes = task.BoardLists{}, nodes
		c.readsFleet, _ = q.May("read", "nodes", "")
		c.readsStatus, _ = q.May("read", "cluster", "")
		rights := rightsCache{r: q}
		c.readsAlerts = slices.ContainsFunc(q.Namespaces(), func(ns string) bool { return rights.may("read", "runs", ns) })

		return c, nil
	})
	if err != nil {
		return counts{}
	}

	return c
}

// Nav returns the navigation.
func (v *View) Nav() []NavItem {
	var items []NavItem
	for _, e := range navigation {
		screen := v.server.screenNamed(e.screen)
		if screen == nil {
			continue
		}

		path, _ := v.Link(screen.Pattern)
		item := NavItem{Name: e.screen, Label: e.label, Path: path, Key: e.key, Current: v.screen.Nav == e.screen}
		if v.counts.known {
			item.Count, item.Alert = v.counts.text(e.screen)
		}
		items = append(items, item)
	}

	return items
}

// OtherNode is another node that serves pages.
type OtherNode struct{ Name, Address string }

// maxOtherNodes is the maximum number of nodes to which a page leads when its own does not answer.
const maxOtherNodes = 4

// OtherNodes returns other nodes that serve this page, for viewers who may read nodes. There are none behind a proxy, whose
// address browsers use for all nodes.
func (v *View) OtherNodes() []OtherNode {
	if !v.counts.known || !v.counts.readsFleet || v.server.Origin != "" {
		return nil
	}

	var others []OtherNode
	for _, n := range v.counts.board.Nodes {
		if n.Name != v.server.Node && n.Address != "" && slices.Contains(n.Roles, task.RoleAPI) {
			others = append(others, OtherNode{n.Name, n.Address})
		}
	}
	slices.SortFunc(others, func(a, b OtherNode) int { return strings.Compare(a.Name, b.Name) })

	return others[:min(len(others), maxOtherNodes)]
}

// screenNamed returns a screen by its name; nil if there is none.
func (s *Server) screenNamed(name string) *Screen {
	for i := range s.list {
		if s.list[i].Name == name {
			return &s.list[i]
		}
	}
	return nil
}

// text returns the count of a screen, and whether it needs attention.
func (c *counts) text(screen string) (text string, alert bool) {
	b := &c.board
	switch screen {
	case "now":
		if c.attention > 0 {
			return wording.Grouped(c.attention), true
		}
	case "tasks":
		if c.everything {
			return c.tasksText(), false
		}
	case "runs":
		return wording.Grouped(b.ActiveCount + b.WaitingCount), false
	case "alerts":
		if n := b.OpenAlerts(); n > 0 && c.readsAlerts {
			return wording.Grouped(n), true
		}
	case "nodes":
		if c.readsFleet {
			return c.nodesText()
		}
	case "shards":
		if c.readsStatus {
			return fmt.Sprintf("%d/%d", b.ShardsOwned, b.ShardCount), b.ShardsOwned < b.ShardCount
		}
	case "health":
		if c.ofCluster > 0 && c.readsStatus {
			return wording.Grouped(c.ofCluster), true
		}
	}

	return "", false
}

// tasksText returns the number of tasks; with a plus sign if some shards have not answered.
func (c *counts) tasksText() string {
	text := wording.Grouped(c.board.Tasks)
	if len(c.board.Missing) > 0 {
		text += "+"
	}
	return text
}

// nodesText returns the number of nodes; of those that are ready, if some are not.
func (c *counts) nodesText() (text string, alert bool) {
	ready := 0
	for _, n := range c.board.Nodes {
		if n.State == task.NodeReady && n.Ineligible == "" && len(n.Blocked) == 0 && !n.Silent {
			ready++
		}
	}

	if all := len(c.board.Nodes); ready < all {
		return fmt.Sprintf("%d/%d", ready, all), true
	}

	return wording.Grouped(ready), false
}
