package authority

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// maxAge is how old the last proof that the copy is current may be when a read is authorised.
	maxAge = 5 * time.Second
	// proveEvery is how often the copy is proven. One that fails may be tried again within maxAge.
	proveEvery = 2 * time.Second
	// proveTimeout bounds the read of a proof, and how long a caller of Proven waits for one.
	proveTimeout = 2 * time.Second
	// compileEvery is how long the Keeper waits after it has made a view before it makes the next. Changes that arrive
	// meanwhile share that view, so that many changes do not take all of the node's time: after a change of a role or a
	// binding, all records are compiled again, which takes some 15 ms for thousands of tokens. Writes that wait for a change
	// wait that much longer at most.
	compileEvery = 20 * time.Millisecond
	// relist is how often the mirror lists the records again, in case a watch has lost something.
	relist = time.Minute
)

// View is who may do what, by the access records of one revision.
type View struct {
	*access.Table
	records kv.Snapshot // from which the table was compiled
}

// Verify returns the token whose secret has a hash. It reports false if there is no such
// token; whether the token is accepted now is the caller's to ask (access.Table.TokenProblem).
func (v *View) Verify(id string, hash [sha256.Size]byte) (task.Token, bool) {
	want, ok := v.TokenHash(id)
	if subtle.ConstantTimeCompare(want[:], hash[:]) != 1 || !ok {
		return task.Token{}, false
	}

	return v.Token(id)
}

// Created is the create revision of a token's key; 0 if there is no such token.
func (v *View) Created(id string) int64 { return v.TokenCreated(id) }

// ProofOf is what a write compares that a caller with a token makes: that the records of this view still hold, that the
// token exists, and that the token with which a session was created does. token is "" for a caller without a token.
func (v *View) ProofOf(token string) store.Proof {
	t, _ := v.Token(token)
	return store.Proof{Fence: v.Fence, Token: token, TokenCreated: v.Created(token), Parent: t.Parent, ParentCreated: v.Created(t.Parent)}
}

// contradicts reports whether a proof no longer is what the records of this view would give.
func (v *View) contradicts(p store.Proof) bool {
	return v.Fence != p.Fence || v.Created(p.Token) != p.TokenCreated || v.Created(p.Parent) != p.ParentCreated
}

// extent returns the number of records and their highest mod revision.
func (v *View) extent() (number int, newest int64) {
	for _, e := range v.records.KVs {
		newest = max(newest, e.ModRevision)
	}

	return len(v.records.KVs), newest
}

// Mod is the mod revision of the key of an access record; 0 if there is no such key.
func (v *View) Mod(key string) int64 {
	e := v.records.Get(key)
	if e == nil {
		return 0
	}

	return e.ModRevision
}

// Keeper keeps a View current. It is safe for concurrent use.
type Keeper struct {
	client *kv.Client
	keys   record.Keys
	log    *zap.Logger
	mirror *kv.Mirror

	view   atomic.Pointer[View]
	proven atomic.Pointer[time.Time] // when the read of the last successful proof was sent

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when there is a new View
	proving chan struct{} // has one value while a proof is under way: a mutex would not end with the context
}

// New makes the Keeper of a cluster's access records. It does no I/O; Run fills it.
func New(client *kv.Client, keys record.Keys, log *zap.Logger) *Keeper {
	if log == nil {
		log = zap.NewNop()
	}

	prefix := keys.Access()
	k := &Keeper{
		client: client, keys: keys, log: log.Named("authority"), changed: make(chan struct{}), proving: make(chan struct{}, 1),
		mirror: kv.NewMirror(client, kv.FollowConfig{Key: prefix, End: clientv3.GetPrefixRangeEnd(prefix), Name: "access", Relist: relist, Logger: log}),
	}
	k.view.Store(&View{Table: &access.Table{}})

	return k
}

// Run keeps the view current until ctx ends, and returns its error. It is called once.
func (k *Keeper) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	changed := wake.NewSignal()
	defer k.mirror.Subscribe(changed)()

	running.Go(func() { _ = k.mirror.Run(ctx) })
	running.Go(func() { k.keepProven(ctx) })

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			k.setView(k.updateView(k.View(), k.mirror.Snapshot()))
			clock.Sleep(ctx, compileEvery)
		}
	}
}

// keepProven proves the view every proveEvery, so that reads need not wait for a proof.
func (k *Keeper) keepProven(ctx context.Context) {
	for clock.Sleep(ctx, proveEvery) {
		_ = k.proveCurrent(ctx) // Proven reports it when somebody asks
	}
}

func (k *Keeper) setView(v *View) {
	k.view.Store(v)

	k.mu.Lock()
	defer k.mu.Unlock()

	close(k.changed)
	k.changed = make(chan struct{})
}

// View returns the newest view. Before the first list it is one that allows nothing.
func (k *Keeper) View() *View { return k.view.Load() }

// AwaitLoaded returns once the view is that of a cluster, after the first list. It returns
// task.ErrUnavailable if ctx ends first.
func (k *Keeper) AwaitLoaded(ctx context.Context) (*View, error) {
	return k.awaitView(ctx, func(v *View) bool { return v.Fence > 0 })
}

// AwaitChange returns a view by which a proof is no longer what it was: for a write that lost
// to a change that this node's watch may not have reported yet. It returns
// task.ErrUnavailable if ctx ends first.
func (k *Keeper) AwaitChange(ctx context.Context, lost store.Proof) (*View, error) {
	return k.awaitView(ctx, func(v *View) bool { return v.contradicts(lost) })
}

func (k *Keeper) awaitView(ctx context.Context, is func(*View) bool) (*View, error) {
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()

		if v := k.View(); is(v) {
			return v, nil
		}

		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: this node does not know the newest access records yet", task.ErrUnavailable)
		case <-changed:
		}
	}
}

var errNotProven = errors.New("the copy of the access records is older than etcd's")

// Proven reports whether the view was current within maxAge before now. If not, it tries once
// to prove it. Its error is task.ErrUnavailable.
func (k *Keeper) Proven(ctx context.Context) error {
	if at := k.proven.Load(); at != nil && time.Since(*at) <= maxAge {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()

	for {
		err := k.proveCurrent(ctx)
		if err == nil {
			return nil
		}

		// A change that was written just now is still on its way.
		if !errors.Is(err, errNotProven) || !clock.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%w: this node cannot tell whether its access records are current: %w", task.ErrUnavailable, err)
		}
	}
}

// proveCurrent compares the mod revisions of two keys in etcd with those in the view. Each change of the access records by
// Carillon writes one of these keys in its own transaction. If both are equal, the view has all changes, because it consists of
// whole revisions in order. The cost does not depend on the number of records.
//
// The proof does not cover records that another program writes without these keys. The watch or the next list of the mirror
// reports them.
func (k *Keeper) proveCurrent(ctx context.Context) error {
	asked := time.Now()
	select {
	case k.proving <- struct{}{}:
		defer func() { <-k.proving }()
	case <-ctx.Done():
		return ctx.Err()
	}

	// Another caller's proof, whose read was sent meanwhile, serves this one, too.
	if at := k.proven.Load(); at != nil && at.After(asked) {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()

	sent := time.Now()
	res, err := k.client.Txn(ctx).Then(
		clientv3.OpGet(k.keys.Fence(), clientv3.WithKeysOnly()),
		clientv3.OpGet(k.keys.TokenChanges(), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return err
	}

	fence, changes := modOf(res.Responses[0].GetResponseRange()), modOf(res.Responses[1].GetResponseRange())
	v := k.View()
	if fence == 0 || fence != v.Fence || changes != v.Mod(k.keys.TokenChanges()) {
		return errNotProven
	}

	// A token was deleted while etcd was full. Another one may have been deleted since, which would leave no trace.
	if changes == 0 {
		if err := k.compareAll(ctx); err != nil {
			return err
		}
	}

	k.proven.Store(&sent)

	return nil
}

// modOf returns the mod revision of the key that was read; 0 if it is absent.
func modOf(r *etcdserverpb.RangeResponse) int64 {
	if len(r.Kvs) == 0 {
		return 0
	}

	return r.Kvs[0].ModRevision
}

// compareAll compares the number of all access records in etcd, and their highest mod revision, with the view. A record that was
// written since would have a higher revision, and a deleted one would be missing from the number. For this, etcd reads all
// records with their values.
func (k *Keeper) compareAll(ctx context.Context) error {
	prefix := k.keys.Access()
	res, err := k.client.Get(ctx, prefix, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(1))
	if err != nil {
		return err
	}

	number, newest := k.View().extent()
	if len(res.Kvs) == 0 || res.Kvs[0].ModRevision != newest || res.Count != int64(number) {
		return errNotProven
	}

	return nil
}

// updateView returns the view of a snapshot. If only tokens have changed since an earlier view, it compiles only these tokens:
// people log in and out often, and each login changes a token. The rights of a token depend on roles and bindings, so a change
// of those compiles everything.
func (k *Keeper) updateView(v *View, s kv.Snapshot) *View {
	if v.records.Revision == 0 { // the empty view of a new Keeper
		return k.compileView(s)
	}

	var tokens []access.TokenChange
	for _, c := range s.ChangesSince(v.records) {
		id, isToken := strings.CutPrefix(c.Key, k.keys.Tokens())
		switch {
		case isToken:
			tokens = append(tokens, k.decodeToken(id, c.KV))
		case c.Key != k.keys.TokenChanges(): // only its mod revision matters
			return k.compileView(s)
		}
	}

	table, problems := v.WithTokens(tokens)
	k.reportProblems(problems)

	return &View{Table: table, records: s}
}

// compileView decodes the records of a snapshot. It logs records that it cannot decode; they allow nothing.
func (k *Keeper) compileView(s kv.Snapshot) *View {
	var records access.Records
	var tokens []access.TokenChange

	for _, e := range s.KVs {
		key := string(e.Key)

		var err error
		switch {
		case key == k.keys.Fence():
			records.Fence = e.ModRevision
		case key == k.keys.TokenChanges(): // only its mod revision matters
		case strings.HasPrefix(key, k.keys.Roles()):
			err = appendRecord(&records.Roles, e.Value, func(r *task.Role) { r.Revision = e.ModRevision })
		case strings.HasPrefix(key, k.keys.Bindings()):
			err = appendRecord(&records.Bindings, e.Value, func(b *task.Binding) { b.Revision = e.ModRevision })
		case strings.HasPrefix(key, k.keys.Namespaces()):
			err = appendRecord(&records.Namespaces, e.Value, func(n *task.Namespace) { n.Revision = e.ModRevision })
		case strings.HasPrefix(key, k.keys.NodeLimits()):
			var limit task.NodeLimit
			limit, err = decodeNodeLimit(k.keys, e)
			records.NodeLimits = append(records.NodeLimits, limit)
		case strings.HasPrefix(key, k.keys.Tokens()):
			tokens = append(tokens, k.decodeToken(key[len(k.keys.Tokens()):], e))
		default:
			subject, ok := k.keys.ParseDisabledSubject(key)
			if !ok {
				err = errors.New("the key is unknown")
			}
			records.Disabled = append(records.Disabled, subject)
		}

		if err != nil {
			k.reportUnusable(key, err)
		}
	}

	table, problems := access.Compile(records)
	k.reportProblems(problems)
	table, problems = table.WithTokens(tokens)
	k.reportProblems(problems)

	return &View{Table: table, records: s}
}

// reportUnusable logs a record that cannot be used.
func (k *Keeper) reportUnusable(key string, err error) {
	k.log.Warn("an access record cannot be used, and allows nothing", zap.String("key", key), zap.Error(err))
}

// reportProblems logs problems of records, which name the record.
func (k *Keeper) reportProblems(problems []error) {
	for _, err := range problems {
		k.reportUnusable(k.keys.Access(), err)
	}
}

// decodeToken decodes the record of a token. One that cannot be decoded is logged, and counts as deleted. e is nil if the
// token was deleted.
func (k *Keeper) decodeToken(id string, e *mvccpb.KeyValue) access.TokenChange {
	c := access.TokenChange{ID: id}
	if e == nil {
		return c
	}

	t, err := record.Decode[record.Token](e.Value)
	if err != nil {
		k.reportUnusable(string(e.Key), err)
		return c
	}

	sum, err := hex.DecodeString(t.Hash)
	if err != nil || len(sum) != sha256.Size {
		k.reportUnusable(string(e.Key), errors.New("the hash is not a SHA-256 in hexadecimal digits"))
		return c
	}

	t.Token.ID = id
	c.Token, c.Created, c.Hash = &t.Token, e.CreateRevision, [sha256.Size]byte(sum)

	return c
}

// decodeNodeLimit decodes a limit of nodes. One that cannot be read allows no labels.
func decodeNodeLimit(keys record.Keys, e *mvccpb.KeyValue) (task.NodeLimit, error) {
	l, err := record.Decode[task.NodeLimit](e.Value)
	if err != nil {
		l = task.NodeLimit{}
	}
	l.Name, l.Revision = string(e.Key)[len(keys.NodeLimits()):], e.ModRevision

	return l, err
}

// CompileNodeLimits returns a table that answers only Table.LimitNode, for a node that follows the limits of nodes and no
// other access records. all are the keys below access/nodes/.
func CompileNodeLimits(keys record.Keys, all []*mvccpb.KeyValue) *access.Table {
	var records access.Records
	for _, e := range all {
		limit, _ := decodeNodeLimit(keys, e)
		records.NodeLimits = append(records.NodeLimits, limit)
	}
	table, _ := access.Compile(records)

	return table
}

func appendRecord[T any](list *[]T, value []byte, complete func(*T)) error {
	r, err := record.Decode[T](value)
	if err != nil {
		return err
	}

	complete(&r)
	*list = append(*list, r)

	return nil
}

// Current returns a view that has every change of the access records that Carillon had made when Current was called, like a
// linearizable read of all of them. It costs one read of two keys, however many records there are. Its error is
// task.ErrUnavailable.
func (k *Keeper) Current(ctx context.Context) (*View, error) {
	for {
		err := k.proveCurrent(ctx)
		if err == nil {
			return k.View(), nil // the proven view, or a newer one
		}

		// A change that was written just now is still on its way.
		if !errors.Is(err, errNotProven) || !clock.Sleep(ctx, 2*time.Millisecond) {
			return nil, fmt.Errorf("%w: read the access records: %w", task.ErrUnavailable, err)
		}
	}
}

// Await returns the first view for which is returns true. It returns task.ErrUnavailable if ctx ends first.
func (k *Keeper) Await(ctx context.Context, is func(*View) bool) (*View, error) {
	return k.awaitView(ctx, is)
}

// A token's secret is carillon_ID_PART, where PART encodes tokenRandom random bytes and their
// CRC-32. The checksum is not for protection: it lets a node reject mistyped, truncated and other invalid secrets
// before anything is looked up. Secret scanners can use it, too.
const (
	tokenMark   = "carillon"
	tokenRandom = 20 // bytes: 160 bits
	idLetters   = 16
)

var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewSecret returns a new secret, and the record of a token with it. The caller completes the
// record: at least its subject and when it was created.
func NewSecret() (secret string, t record.Token) {
	var b [tokenRandom + crc32.Size]byte
	rand.Read(b[:tokenRandom]) // crypto/rand never fails
	binary.BigEndian.PutUint32(b[tokenRandom:], crc32.ChecksumIEEE(b[:tokenRandom]))

	id, part := task.NewUID(), tokenEncoding.EncodeToString(b[:])
	hash := sha256.Sum256([]byte(part))
	t = record.Token{Token: task.Token{ID: id}, Hash: hex.EncodeToString(hash[:])}

	return tokenMark + "_" + id + "_" + part, t
}

// ParseSecret returns the id of a token and the hash of its secret part. It reports false if s
// is not the secret of any token, by its form. An id that it returns cannot lead to a key
// outside the prefix of tokens.
func ParseSecret(s string) (id string, hash [sha256.Size]byte, ok bool) {
	parts := strings.Split(s, "_")
	if len(parts) != 3 || parts[0] != tokenMark || len(parts[1]) != idLetters || len(s) > 256 {
		return "", hash, false
	}

	if strings.ContainsFunc(parts[1], func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') }) {
		return "", hash, false
	}

	b, err := tokenEncoding.DecodeString(parts[2])
	if err != nil || len(b) != tokenRandom+crc32.Size || binary.BigEndian.Uint32(b[tokenRandom:]) != crc32.ChecksumIEEE(b[:tokenRandom]) {
		return "", hash, false
	}

	return parts[1], sha256.Sum256([]byte(parts[2])), true
}
