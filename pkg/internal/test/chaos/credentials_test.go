package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// visitsSpace is the namespace of the visitor's tasks.
	visitsSpace = "visits"
	// visitor is a program whose credentials come and go.
	visitor = access.KindService + ":visitor"
)

// openNamespaces creates the namespaces of a run. Their tasks may be everything.
func (w *world) openNamespaces() error {
	names := []string{loadSpace, usersSpace, visitsSpace, registersSpace, fullSpace, herdSpace, receiversSpace}
	for i := range changers {
		names = append(names, callsSpace(i))
	}

	for _, name := range names {
		if err := w.eventually(30*time.Second, func() error {
			_, err := w.nodes[0].client.Namespaces.Put(w.ctx, store.OpenNamespace(name), client.Writing{})
			return err
		}); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}

	return nil
}

// comeAndGo creates a token for the visitor, has it write through all nodes at once, and takes its rights away meanwhile, in
// one of several ways. The checker judges from the history that nothing was written without rights (G27).
func (c *callers) comeAndGo(ctx context.Context, nodes []*node) {
	r := rand.New(rand.NewPCG(c.w.seed, 4000))
	binding := func(role string) task.Binding {
		return task.Binding{Name: "visitor", Role: role, Subjects: []string{visitor}, Namespaces: []string{visitsSpace}}
	}

	for rest(ctx, r, time.Second) {
		api := one(r, nodes).client

		_, err := api.Bindings.Put(ctx, binding("editor"), client.Writing{})
		if err != nil {
			continue
		}
		if _, err := api.Subjects.Enable(ctx, visitor); err != nil {
			continue
		}
		token, err := api.Tokens.Create(ctx, client.TokenRequest{Subject: visitor, Until: task.At(time.Now().Add(time.Hour))})
		if err != nil {
			continue
		}

		visits, leave := context.WithCancel(ctx)
		var writing sync.WaitGroup
		for i, n := range nodes {
			writing.Go(func() { c.visit(visits, rand.New(rand.NewPCG(c.w.seed, uint64(5000+i))), n, token.Secret) })
		}
		rest(ctx, r, 2*time.Second)

		what := one(r, []string{"delete its token", "delete its token", "narrow its binding", "disable it"})
		api = one(r, nodes).client
		switch what {
		case "delete its token":
			err = api.Tokens.Delete(ctx, token.ID)
		case "narrow its binding":
			_, err = api.Bindings.Put(ctx, binding(access.RoleViewer), client.Writing{})
		case "disable it":
			_, err = api.Subjects.Disable(ctx, visitor)
		}
		c.uses("visitor: "+what, err)

		rest(ctx, r, time.Second) // it goes on for a while
		leave()
		writing.Wait()
		_ = api.Tokens.Delete(ctx, token.ID)
	}
}

// visit writes through a node until ctx ends.
func (c *callers) visit(ctx context.Context, r *rand.Rand, n *node, secret string) {
	api, err := client.New(client.Config{Server: "http://" + n.address, Token: secret, Timeout: 8 * time.Second})
	if err != nil {
		c.note("a client for the visitor: %v", err)
		return
	}

	for rest(ctx, r, 60*time.Millisecond) {
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule = visitsSpace, fmt.Sprintf("v%d", r.IntN(6)), task.Schedules{"@manual"}
		s.Action.Noop, s.Description = &task.Noop{}, fmt.Sprint(r.Uint32())

		switch what := one(r, []string{"apply", "apply", "trigger", "delete"}); what {
		case "apply":
			_, err = api.Tasks.Apply(ctx, s, client.ApplyOptions{})
			c.uses("visitor: apply", err)
		case "trigger":
			_, err = api.Tasks.Trigger(ctx, visitsSpace, s.Name, nil)
			c.uses("visitor: trigger", err)
		case "delete":
			err = api.Tasks.Delete(ctx, visitsSpace, s.Name, 0)
			c.uses("visitor: delete", err)
		}
	}
}
