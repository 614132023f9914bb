package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// account is what one user of the API calls it with: a subject with a binding and a token. The workload "revoke" takes
// them away and gives them back.
type account struct {
	subject string
	binding string

	mu      sync.Mutex
	secret  string
	tokenID string
}

// newAccount returns an account, and the records that a cluster begins with so that it may do everything.
func newAccount(n int) (*account, record.Token, task.Binding) {
	a := &account{subject: fmt.Sprintf("%s:u%d", access.KindUser, n), binding: fmt.Sprintf("u%d", n)}
	secret, token := authority.NewSecret()
	token.Subject = a.subject
	a.secret, a.tokenID = secret, token.ID

	return a, token, a.bindingOf(access.RoleAdmin)
}

func (a *account) bindingOf(role string) task.Binding {
	return task.Binding{Name: a.binding, Role: role, RoleUID: access.BuiltInUID, Subjects: []string{a.subject}, Cluster: true}
}

func (a *account) token() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.secret
}

// clientOf returns a client of a node's API with the token of the user.
func (u *user) clientOf(n *node) *client.Client { return u.clientWith(n, u.account.token()) }

// requestByPath calls a node's API with the token of the user.
func (u *user) requestByPath(ctx context.Context, n *node, method, path string, body, answer any) error {
	return u.requestWith(ctx, u.account.token(), n, method, path, body, answer)
}

// rootAuthority writes on behalf of root on a host.
type rootAuthority struct{ *world }

// Authorize implements store.Authority.
func (r rootAuthority) Authorize(ctx context.Context, _ *store.Proof) (store.Proof, error) {
	fence, err := r.etcd.Get(ctx, r.admin.Keys().Fence())
	if err != nil {
		return store.Proof{}, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}

	return store.Proof{Fence: fence.Kvs[0].ModRevision}, nil
}

// Record implements store.Authority.
func (r rootAuthority) Record() task.AuditRecord {
	now := time.Now()
	return task.AuditRecord{ID: record.NewAuditID(now), Time: task.At(now), Subject: access.KindUnix + ":sim", Operation: "administrate"}
}

// GrantsAccess implements store.Authority.
func (rootAuthority) GrantsAccess() bool { return true }

// Committed implements store.Authority.
func (rootAuthority) Committed([]int, int64) {}

// Late implements store.Authority. The checker does not demand the records of a time when etcd was full.
func (r rootAuthority) Late(task.AuditRecord) {}

// changeAccount makes a change of an account as root, in one attempt: etcd may be away.
func (w *world) changeAccount(a *account, what string, change func(ctx context.Context, s *store.Store) error) {
	ctx, cancel := context.WithTimeout(w.life, time.Second)
	defer cancel()

	err := change(ctx, w.admin.As(rootAuthority{w}))
	w.logLine("> %s of %s: %v", what, a.subject, err)
	if err == nil {
		w.countReached(what)
	}
}

// mod returns the mod revision of a key; 0 if it is absent.
func (w *world) mod(ctx context.Context, key string) (mod, created int64, err error) {
	r, err := w.etcd.Get(ctx, key)
	if err != nil || len(r.Kvs) == 0 {
		return 0, 0, err
	}

	return r.Kvs[0].ModRevision, r.Kvs[0].CreateRevision, nil
}

// putBinding gives an account a binding of a role, which may end by itself.
func (w *world) putBinding(a *account, what, role string, until time.Time) {
	w.changeAccount(a, what, func(ctx context.Context, s *store.Store) error {
		mod, _, err := w.mod(ctx, w.admin.Keys().Binding(a.binding))
		if err == nil {
			b := a.bindingOf(role)
			b.Until = task.At(until)
			_, err = s.PutBinding(ctx, mod, b, time.Now())
		}

		return err
	})
}

// deleteToken deletes the token of an account.
func (w *world) deleteToken(a *account) {
	w.changeAccount(a, "delete the token", func(ctx context.Context, s *store.Store) error {
		_, created, err := w.mod(ctx, w.admin.Keys().Token(a.tokenID))
		if err == nil && created > 0 {
			err = s.DeleteToken(ctx, a.tokenID, created)
		}

		return err
	})
}

// createToken gives an account a new token, which may expire.
func (w *world) createToken(a *account, until time.Time) {
	w.changeAccount(a, "create a token", func(ctx context.Context, s *store.Store) error {
		secret, token := authority.NewSecret()
		token.Subject, token.Until = a.subject, task.At(until)

		err := s.CreateToken(ctx, token)
		if err == nil {
			a.mu.Lock()
			a.secret, a.tokenID = secret, token.ID
			a.mu.Unlock()
		}

		return err
	})
}

// revokeOneAccount takes rights away from a user of the API, in one of several ways, and gives them back.
func revokeOneAccount(w *world) func(*world) {
	a := pickRandom(w.rng, w.accounts)
	soon := time.Now().Add(durationBetween(w.rng, time.Second, 5*time.Second))

	switch w.rng.IntN(5) {
	case 0:
		w.deleteToken(a)
		return func(w *world) { w.createToken(a, time.Time{}) }
	case 1:
		w.createToken(a, soon)
		return func(w *world) { w.createToken(a, time.Time{}) }
	case 2:
		w.putBinding(a, "narrow the binding", access.RoleViewer, time.Time{})
	case 3:
		w.putBinding(a, "limit the binding in time", access.RoleAdmin, soon)
	default:
		key := w.admin.Keys().DisabledSubject(a.subject)
		w.changeAccount(a, "disable", func(ctx context.Context, s *store.Store) error { return s.DisableSubject(ctx, a.subject, time.Now()) })

		return func(w *world) {
			w.changeAccount(a, "enable", func(ctx context.Context, s *store.Store) error {
				mod, _, err := w.mod(ctx, key)
				if err == nil && mod > 0 {
					err = s.EnableSubject(ctx, a.subject, mod, time.Now())
				}

				return err
			})
		}
	}

	return func(w *world) { w.putBinding(a, "give the binding back", access.RoleAdmin, time.Time{}) }
}

// poolLabel is the label by which the namespace of the simulation may select nodes. Half of the nodes announce pool a.
const poolLabel = "pool"

// poolOf returns the value of a node's poolLabel.
func poolOf(node int) string { return []string{"a", "b"}[node%2] }

// nameUsers has some tasks name OS users, so that a change of the namespace's record can forbid them. It derives its
// choices from numbers that are drawn already.
func nameUsers(s *task.Spec, _ *rand.Rand) {
	if s.Action.Process != nil {
		s.Action.Process.User = []string{"", "app", "batch"}[s.History.Keep%3]
	}
}

// changeNamespace changes what the namespace of the simulation allows, or which nodes may have its label.
func (u *user) changeNamespace(ctx context.Context, c *client.Client, what string) error {
	n := store.OpenNamespace(simNamespace)

	switch what {
	case "limit namespace":
		n.RunAs = []string{"app"}
	case "restrict nodes":
		n.Nodes = poolLabel + " = a"
	case "limit nodes": // the namespace stays as it is
		_, err := c.NodeLimits.Put(ctx, task.NodeLimit{Name: "*", Labels: []string{"host=*"}}, client.Writing{})
		return err
	case "open nodes":
		err := c.NodeLimits.Delete(ctx, "*", 0)
		if errors.Is(err, task.ErrNotFound) {
			err = nil
		}

		return err
	}

	change, err := c.Namespaces.Put(ctx, n, client.Writing{})
	if err == nil && change.ForbiddenCount > 0 {
		u.countReached("namespace forbids tasks")
	}

	return err
}

// openNamespace has the namespace of the simulation allow everything again, and nodes have any labels, so that no
// run waits for a node forever.
func (w *world) openNamespace() {
	keys := w.admin.Keys()
	s := w.admin.As(rootAuthority{w})

	w.waitUntil(5*time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(w.life, time.Second)
		defer cancel()

		mod, _, err := w.mod(ctx, keys.NodeLimit("*"))
		if err == nil && mod > 0 {
			err = s.DeleteNodeLimit(ctx, "*", mod, time.Now())
		}
		if err != nil {
			return false
		}

		res, err := w.etcd.Get(ctx, keys.Namespace(simNamespace))
		if err != nil || len(res.Kvs) == 0 {
			return false
		}

		is, err := record.Decode[task.Namespace](res.Kvs[0].Value)
		if err == nil && len(is.RunAs) == 1 && is.RunAs[0] == "*" && is.Nodes == "" {
			return true
		}

		n := store.OpenNamespace(simNamespace)
		n.UpdatedAt = task.At(time.Now())
		_, err = s.PutNamespace(ctx, res.Kvs[0].ModRevision, n, time.Now())

		return err == nil
	})
}
