package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// requestByPath calls a node's HTTP API by its path, as a user without a client library does, without the client package.
// answer may be nil. The error is a *client.Error if the API refuses the call.
func (w *world) requestByPath(ctx context.Context, n *node, method, path string, body, answer any) error {
	return w.requestWith(ctx, w.firstToken(), n, method, path, body, answer)
}

// requestWith is requestByPath with a token. It does nothing if that is "".
func (w *world) requestWith(ctx context.Context, token string, n *node, method, path string, body, answer any) error {
	if token == "" {
		return nil
	}

	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.address+path, bytes.NewReader(b))
	if err != nil {
		return err
	}

	req.Header.Set("Authorization", "Bearer "+token)

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	res, err := w.newHTTPClient().Do(req)
	if err != nil {
		return err
	}

	defer res.Body.Close()

	if res.StatusCode >= 300 {
		var p struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		}
		if err := json.NewDecoder(res.Body).Decode(&p); err != nil || p.Code == "" {
			return fmt.Errorf("%s %s: status %d", method, path, res.StatusCode)
		}

		return &client.Error{Status: res.StatusCode, Code: p.Code, Message: p.Detail}
	}

	if answer == nil {
		return nil
	}

	return json.NewDecoder(res.Body).Decode(answer)
}

// freezePath returns the path of the freeze of a namespace, or of the cluster if namespace is "".
func freezePath(namespace string) string {
	if namespace == "" {
		return "/v1/cluster/freeze"
	}
	return "/v1/namespaces/" + namespace + "/freeze"
}

// taskPath returns a path below a task.
func taskPath(name, rest string) string {
	return "/v1/namespaces/" + simNamespace + "/tasks/" + name + "/" + rest
}

// taskRef returns the name and shard of a task.
func (w *world) taskRef(name string) record.Ref {
	return record.Ref{Namespace: simNamespace, Name: name, Shard: shard.Of(simNamespace, name, w.opts.Shards)}
}

// someDead draws a dead run. It returns its task's name and its id, or "" if there is none.
func (u *user) someDead() (name, id string) {
	root := u.admin.Keys().Shards()
	res, err := u.etcd.Get(u.life, root, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return "", ""
	}

	var all []record.ShardKey
	for _, e := range res.Kvs {
		if k, ok := u.admin.Keys().ParseShard(string(e.Key)); ok && k.Kind == record.KindDead {
			all = append(all, k)
		}
	}

	if len(all) == 0 {
		return "", ""
	}

	k := pickRandom(u.rng, all)

	return k.Ref.Name, k.Run
}

// endFreezes ends all freezes.
func (w *world) endFreezes() {
	for _, ns := range []string{"", simNamespace} {
		done := w.waitUntil(5*time.Minute, func() bool {
			for _, name := range w.names {
				if w.nodes[name].proc == nil {
					continue
				}

				err := w.requestByPath(w.life, w.nodes[name], http.MethodDelete, freezePath(ns), nil, nil)
				var held task.Freezes

				if res, readErr := w.etcd.Get(w.life, w.admin.Keys().Freezes()); readErr == nil && len(res.Kvs) > 0 {
					_ = json.Unmarshal(res.Kvs[0].Value, &held)
				}

				// Only etcd shows whether the freeze has ended: the call may have taken effect although its answer
				// was lost.
				if holds := held.Of(ns); holds == nil || holds.Namespace != ns {
					return true
				}

				w.logLine("> %s cannot unfreeze %q: %v", name, ns, err)
			}

			return false
		})

		if !done {
			w.abort(fmt.Errorf("%q stays frozen:\n%s", ns, strings.Join(w.story, "\n")))
		}
	}
}
