package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
)

// reader reads lists through the API of any node, page by page.
type reader struct {
	*lister
	name string
	rng  *rand.Rand
}

// readAll reads one list after another until ctx ends.
func (r *reader) readAll(ctx context.Context) {
	for clock.Sleep(ctx, durationBetween(r.rng, 0, 400*time.Millisecond)) {
		filter := pickRandom(r.rng, []listcheck.Filter{listcheck.All, listcheck.All, listcheck.Paused, listcheck.Failing})
		limit := 3 + r.rng.IntN(30)

		// Without the query line, the API would read the names from etcd.
		v := url.Values{"q": {"name~t"}, "brief": {"true"}, "limit": {fmt.Sprint(limit)}}
		if filter != listcheck.All {
			v = url.Values{"q": {"state:" + string(filter)}, "brief": {"true"}, "limit": {fmt.Sprint(limit)}}
		}

		r.readPages(ctx, r.anyNode(), filter, v, limit)
	}
}

// anyNode draws a node.
func (r *reader) anyNode() *node {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	return r.nodes[pickRandom(r.rng, r.names)]
}

// readPages reads all pages of a list, and keeps them.
func (r *reader) readPages(ctx context.Context, n *node, filter listcheck.Filter, v url.Values, limit int) {
	var pages []listcheck.List
	after := ""

	for {
		var page client.QueryList[client.Task]
		asked := time.Now()
		if err := r.requestByPath(ctx, n, http.MethodGet, "/v1/namespaces/"+simNamespace+"/tasks?"+v.Encode(), nil, &page); err != nil {
			r.noteFailure(err)
			return
		}
		if page.Count == nil {
			r.abort(fmt.Errorf("the owners were not asked for %s", v.Encode()))
		}

		shown := time.Now()
		list := listcheck.List{
			Asker: r.name, Filter: filter, ByName: true, After: after, Asked: asked, Shown: shown,
			AsOf: shown.Add(-time.Duration(page.AgeMS) * time.Millisecond), Count: *page.Count, Missing: page.Missing,
			Collecting: page.Collecting != nil, More: page.Next != "", Names: make([]string, len(page.Items)),
		}
		for i := range page.Items {
			list.Names[i] = page.Items[i].Namespace + "/" + page.Items[i].Name
		}

		pages = append(pages, list)
		r.keepList(list)

		if !list.More {
			break
		}

		// A task that was deleted meanwhile is not shown, so the last place of the page is not known.
		if len(list.Names) < limit {
			return
		}
		after = list.Names[len(list.Names)-1]
		v.Set("page", page.Next)
	}

	if filter == listcheck.All {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.walks = append(r.walks, pages)
	}
}

// keepList keeps a list that the API has shown.
func (r *reader) keepList(list listcheck.List) {
	r.countReached("list through the API")

	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists = append(r.lists, list)
}

// noteFailure counts why the API has shown no list.
func (r *reader) noteFailure(err error) {
	var problem *client.Error
	if errors.As(err, &problem) {
		r.countReached("API answers " + problem.Code)
	}
}
