package ui

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxViewers is the maximum number of streams of a node. Further pages ask again every few seconds.
	maxViewers = 256
	// maxViewersOf is how many of them one subject can have, so that nobody takes all of them.
	maxViewersOf = 64
	// maxViewersOfSession is how many of them one session can have. Tabs that nobody sees have no stream.
	maxViewersOfSession = 16
	// loadTimeout limits how long a screen may load for its viewers.
	loadTimeout = 15 * time.Second
	// lastKnownFor is how long the last state of a page that was watched is kept, for its viewers, and maxLastKnown how
	// many of them are.
	lastKnownFor = 10 * time.Minute
	maxLastKnown = 64
	// justLoadedFor is how long what a page was made of is kept for its stream, which the browser opens at once, and
	// maxJustLoaded for how many pages.
	justLoadedFor = time.Second
	maxJustLoaded = 16
)

// hub renders the pages that somebody watches, and hands out what has changed.
type hub struct {
	server *Server

	mu       sync.Mutex
	watches  map[watchKey]*watch
	viewers  map[string]int // the admitted streams, by the subjects of their viewers
	sessions map[string]int // the same, by the ids of their sessions
	all      int            // the sum of them
	old      map[watchKey]lastState
	loaded   map[watchKey]loadedPage
}

// watchKey identifies what viewers can share: a page with its query, which includes the zone of times, and their rights.
type watchKey struct {
	at     string
	rights access.Digest
}

// lastState is the last known state of a page.
type lastState struct {
	data   any
	at     time.Time
	tokens []string // of those who have seen it
}

// loadedPage is what a page was made of that a browser has just loaded.
type loadedPage struct {
	data  any
	state *pageState
}

func newHub(s *Server) *hub {
	return &hub{server: s, watches: map[watchKey]*watch{}, viewers: map[string]int{}, sessions: map[string]int{}, old: map[watchKey]lastState{}, loaded: map[watchKey]loadedPage{}}
}

// admit counts a new stream of a viewer. It returns false if there are too many.
func (h *hub) admit(who access.Caller) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.all >= maxViewers || h.viewers[who.Subject] >= maxViewersOf || h.sessions[who.Token] >= maxViewersOfSession {
		return false
	}
	h.all++
	h.viewers[who.Subject]++
	h.sessions[who.Token]++

	return true
}

// release is called at the end of an admitted stream.
func (h *hub) release(who access.Caller) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.all--
	if h.viewers[who.Subject]--; h.viewers[who.Subject] == 0 {
		delete(h.viewers, who.Subject)
	}
	if h.sessions[who.Token]--; h.sessions[who.Token] == 0 {
		delete(h.sessions, who.Token)
	}
}

// attach makes a viewer watch its page with its present rights. The first viewer of a page starts to render it.
func (h *hub) attach(v *viewer, rights access.Digest) *watch {
	h.mu.Lock()
	defer h.mu.Unlock()

	key := watchKey{v.at, rights}
	if w := h.watches[key]; w != nil {
		w.add(v)
		return w
	}

	w := &watch{hub: h, key: key, screen: v.screen, viewers: map[*viewer]struct{}{}, stop: make(chan struct{}), done: make(chan struct{})}
	h.watches[key] = w
	if page, ok := h.loaded[key]; ok && isRecent(page.state.at, h.server.Now()) {
		w.last, w.state = page.data, page.state
	}
	delete(h.loaded, key) // the next viewers share the watch
	w.add(v)              // before the first rendering, which is for those who watch by then
	callgroup.Start(w.run, w.logPanic)

	return w
}

// detach ends what attach has begun. After the last viewer, it waits until the page is no longer rendered.
func (h *hub) detach(w *watch, v *viewer) {
	h.mu.Lock()
	last := w.remove(v)
	if last {
		delete(h.watches, w.key)
		close(w.stop)
	}
	h.mu.Unlock()

	if last {
		<-w.done
	}
}

// keepLoaded keeps what a page was made of, so that its stream does not render the same again.
func (h *hub) keepLoaded(key watchKey, page loadedPage) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for k, other := range h.loaded {
		if !isRecent(other.state.at, page.state.at) {
			delete(h.loaded, k)
		}
	}
	if len(h.loaded) < maxJustLoaded {
		h.loaded[key] = page
	}
}

// isRecent reports whether a page that was loaded at a time is current enough for the stream of a browser.
func isRecent(at, now time.Time) bool {
	age := now.Sub(at)
	return age >= 0 && age < justLoadedFor
}

// keep remembers the last state of a page for those who have seen it.
func (h *hub) keep(key watchKey, state lastState) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for k, old := range h.old {
		if state.at.Sub(old.at) > lastKnownFor {
			delete(h.old, k)
		}
	}

	if _, known := h.old[key]; !known && len(h.old) >= maxLastKnown {
		oldest := key
		for k, old := range h.old {
			if oldest == key || old.at.Before(h.old[oldest].at) {
				oldest = k
			}
		}
		delete(h.old, oldest)
	}

	h.old[key] = state
}

// lastKnown returns the last state of a page that a caller has watched, and its time; nil if there is none. It is shown
// while the API cannot answer, only to callers who have seen it, and who as far as the node knows still have the rights.
func (h *hub) lastKnown(at string, c access.Caller) (any, task.Time) {
	s := h.server
	key := watchKey{canonical(at), s.rightsOf(s.Access.View(), c)}

	h.mu.Lock()
	defer h.mu.Unlock()

	old, ok := h.old[key]
	if !ok || s.Now().Sub(old.at) > lastKnownFor || !slices.Contains(old.tokens, c.Token) {
		return nil, task.Time{}
	}

	return old.data, task.At(old.at)
}

// watch renders one page for viewers with the same rights.
type watch struct {
	hub    *hub
	key    watchKey
	screen *Screen
	stop   chan struct{}  // closed after the last viewer
	done   chan struct{}  // closed when run has returned
	last   any            // the data of the last rendering; used only by run
	sizes  map[string]int // of the parts of the last rendering; used only by run

	mu      sync.Mutex
	viewers map[*viewer]struct{}
	state   *pageState // nil: not rendered yet
	fault   *Problem   // why it could not be rendered last; nil: it was
}

// pageState is a rendering of the live parts of a page.
type pageState struct {
	parts []part
	at    time.Time

	encode  sync.Once
	encoded []byte // see message
}

// part is a rendered part.
type part struct {
	name    string
	content []byte
	hash    string
}

// run renders the page until stop is closed.
func (w *watch) run() {
	defer close(w.done)

	pause := time.NewTimer(w.useLoaded())
	defer pause.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-pause.C:
		}

		began := time.Now()
		if p := callgroup.Catch(w.refresh); p != nil {
			w.logPanic(p) // the next rendering may succeed
		}
		pause.Reset(max(w.screen.every()-time.Since(began), w.screen.every()/4))
	}
}

func (w *watch) logPanic(p *callgroup.Panic) { _ = w.hub.server.panicked(w.key.at, p) }

// useLoaded hands out what the page was made of when its first viewer has loaded it, if that is recent. It returns when to
// render the page.
func (w *watch) useLoaded() time.Duration {
	w.mu.Lock()
	state := w.state
	var tokens []string
	if state != nil {
		for _, v := range w.entitled() {
			tokens = append(tokens, v.who.caller.Token)
		}
	}
	w.mu.Unlock()

	if state == nil {
		return 0
	}
	w.hub.keep(w.key, lastState{w.last, state.at, tokens})

	return max(w.screen.every()-w.hub.server.Now().Sub(state.at), 0)
}

func (w *watch) add(v *viewer) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.viewers[v] = struct{}{}
	v.begin(w.state, w.fault)
}

// remove removes a viewer, and reports whether it was the last one.
func (w *watch) remove(v *viewer) (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.viewers, v)

	return len(w.viewers) == 0
}

// refresh renders the page once and hands out what has changed. Viewers whose rights are no longer those of the watch are
// asked to start over, before the page is rendered and again afterwards.
func (w *watch) refresh() {
	for _, agent := range w.checkViewers() {
		data, state, err := w.renderAs(agent)
		switch {
		case w.isStopped(), errors.Is(err, errRightsChanged):
			return // the next round begins with the new rights
		case isUnauthorized(err):
			agent.signOut() // and try with the credential of another viewer
			continue
		case err != nil:
			w.hub.server.log.Debug("a page cannot be rendered for its viewers", zap.String("at", w.key.at), zap.Error(err))
			w.fail(problemOf(err))
		default:
			w.last = data
			tokens := w.publish(state)
			w.hub.keep(w.key, lastState{data, state.at, tokens})
		}

		return
	}
}

func (w *watch) isStopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// checkViewers returns the viewers who still have the rights of the watch, and makes the others start over.
func (w *watch) checkViewers() []*viewer {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.entitled()
}

// entitled is checkViewers for callers that hold mu.
func (w *watch) entitled() []*viewer {
	s := w.hub.server
	view := s.Access.View()

	var list []*viewer
	for v := range w.viewers {
		if s.rightsOf(view, v.who.caller) == w.key.rights {
			list = append(list, v)
		} else {
			v.restart()
		}
	}

	return list
}

var errRightsChanged = errors.New("the access records have changed")

// renderAs renders the page with the credential of a viewer. It returns errRightsChanged if the rights of that viewer were
// not those of the watch all the time: then the rendering may contain what others must not see. The fence of the access
// records changes with each change of rights, and never goes back.
func (w *watch) renderAs(agent *viewer) (_ any, _ *pageState, err error) {
	// No request waits for the page, so net/http does not recover. A panic must not end the node.
	defer func() {
		if p := recover(); p != nil {
			value, stack := callgroup.Origin(p)
			err = w.hub.server.panicked(w.key.at, &callgroup.Panic{Value: value, Stack: stack})
		}
	}()

	// The request of the agent may end meanwhile, but not the watch.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(agent.page.Context()), loadTimeout)
	defer cancel()
	callgroup.Start(func() {
		select {
		case <-w.stop:
			cancel()
		case <-ctx.Done():
		}
	}, func(*callgroup.Panic) {})

	s := w.hub.server
	before := s.Access.View()
	if s.rightsOf(before, agent.who.caller) != w.key.rights {
		return nil, nil, errRightsChanged
	}

	q, err := agent.request(s)
	if err != nil {
		return nil, nil, err
	}

	q.previous = w.last
	began := s.Now()
	data, err := w.screen.Load(ctx, q)
	if err != nil {
		return nil, nil, err
	}

	v := &View{Request: q, Data: data, screen: w.screen, server: s, tmpl: s.templates.screens[w.screen.Name], counts: s.countsFor(ctx, q), sizes: w.sizes}
	state := &pageState{at: began}
	sizes := map[string]int{}
	for _, name := range w.screen.partNames() {
		content, err := v.renderPart(name)
		if err != nil {
			return nil, nil, err
		}
		state.parts = append(state.parts, part{name, content, hashOf(content)})
		sizes[name] = len(content)
	}
	w.sizes = sizes

	if after := s.Access.View(); after.Fence != before.Fence || s.rightsOf(after, agent.who.caller) != w.key.rights {
		return nil, nil, errRightsChanged
	}

	return data, state, nil
}

// partNames are the names of the live parts of a page, in the order of a page.
func (s *Screen) partNames() []string {
	names := []string{navPart}
	for _, p := range s.Parts {
		names = append(names, p.Name)
	}
	return names
}

// publish makes a rendering the state of the page, and hands out the differences. It returns the tokens of the viewers.
func (w *watch) publish(state *pageState) (tokens []string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	// All viewers get the same bytes, so that what waits for a slow one costs nothing.
	var changes []byte
	whole := w.state == nil || w.fault != nil
	if !whole {
		if html := encodeChanges(w.state, state); len(html) > 0 {
			changes = encodeMessage(html, retryAfter)
		}
	}
	w.state, w.fault = state, nil

	for _, v := range w.entitled() {
		tokens = append(tokens, v.who.caller.Token)
		if whole {
			v.begin(state, nil)
		} else {
			v.give(changes, state)
		}
	}

	return tokens
}

// fail notifies the viewers that what they see is no longer current.
func (w *watch) fail(p *Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.fault = p
	for _, v := range w.entitled() {
		v.begin(nil, p)
	}
}
