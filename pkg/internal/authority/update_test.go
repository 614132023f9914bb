package authority_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// After any history of access records, the view that was updated change by change is the one that is compiled from all
// records. Few ids and many deletions make tokens come again under the same id, and sessions without their parent.
func TestUpdateView_IsWhatCompileViewReturns(t *testing.T) {
	keys, err := record.NewKeys("/test")
	if err != nil {
		t.Fatal(err)
	}
	k := authority.New(nil, keys, nil)

	rapid.Check(t, func(rt *rapid.T) {
		s := kv.Snapshot{}
		v := k.View()
		var views []*authority.View
		var snapshots []kv.Snapshot

		for range rapid.IntRange(1, 12).Draw(rt, "revisions") {
			s.Revision++
			s.KVs = slices.Clone(s.KVs)
			if rapid.IntRange(0, 5).Draw(rt, "list") == 0 { // the mirror lists its range: all entries are other copies
				for i, e := range s.KVs {
					s.KVs[i] = proto.Clone(e).(*mvccpb.KeyValue)
				}
			}

			for range rapid.IntRange(1, 4).Draw(rt, "changes") {
				key, value := drawRecord(rt, keys)
				s.KVs = changed(s.KVs, key, value, s.Revision)
			}

			v = k.UpdateView(v, s)
			views, snapshots = append(views, v), append(snapshots, s)
		}

		// Requests use a view while later ones are made, which share memory with it. So all are compared at the end.
		for i, v := range views {
			if want := k.CompileView(snapshots[i]); !reflect.DeepEqual(v, want) {
				rt.Fatalf("revision %d:\nthe updated view is  %+v\nthe compiled one is  %+v", snapshots[i].Revision, v.Table, want.Table)
			}
		}
	})
}

// changed returns a list of records with one put at a revision, or deleted if the value is "".
func changed(kvs []*mvccpb.KeyValue, key, value string, rev int64) []*mvccpb.KeyValue {
	i, found := slices.BinarySearchFunc(kvs, key, func(e *mvccpb.KeyValue, key string) int { return bytes.Compare(e.Key, []byte(key)) })
	e := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: rev, CreateRevision: rev}

	switch {
	case value == "" && found:
		return slices.Delete(kvs, i, i+1)
	case value == "":
		return kvs
	case found:
		e.CreateRevision = kvs[i].CreateRevision
		kvs[i] = e
		return kvs
	}

	return slices.Insert(kvs, i, e)
}

// drawRecord returns the key of an access record, and a value: "" deletes the record.
func drawRecord(rt *rapid.T, keys record.Keys) (key, value string) {
	one := func(what string, list ...string) string { return rapid.SampledFrom(list).Draw(rt, what) }
	subject := func() string { return one("subject", "user:ann", "user:bob", "service:x") }
	role := func() (name, uid string) {
		name = one("role", "viewer", "editor", "own")
		if name == "own" {
			return name, one("uid", "u1", "u2")
		}
		return name, access.BuiltInUID
	}

	isDeleted := rapid.IntRange(0, 2).Draw(rt, "deleted") == 0
	isBroken := rapid.IntRange(0, 9).Draw(rt, "broken") == 0
	end := func(key string, value any) (string, string) {
		switch {
		case isDeleted:
			return key, ""
		case isBroken:
			return key, one("junk", "{", "null", `{"hash":"abc"}`, `{"kind":"else"}`)
		}
		return key, record.Encode(value)
	}

	switch what := rapid.IntRange(0, 19).Draw(rt, "record"); what {
	case 0, 1:
		return keys.Fence(), "{}"
	case 2:
		return end(keys.TokenChanges(), struct{}{})
	case 3:
		return end(keys.Role("own"), task.Role{Name: "own", UID: one("uid", "u1", "u2"), Rules: []task.Rule{{Verbs: []string{one("verb", "read", "create")}, Objects: []string{"tasks"}}}})
	case 4, 5:
		b := task.Binding{Name: one("binding", "a", "b"), Namespaces: []string{one("namespace", "*", "team-*", "other")}, Subjects: []string{subject(), "group:idp/ops"}}
		b.Role, b.RoleUID = role()
		return end(keys.Binding(b.Name), b)
	case 6:
		return end(keys.Namespace("n"), store.OpenNamespace("n"))
	case 7:
		return end(keys.NodeLimit("web-*"), task.NodeLimit{Name: "web-*", Labels: []string{"zone=a"}})
	case 8:
		return end(keys.DisabledSubject(subject()), struct{}{})
	case 9:
		return end(keys.Access()+"else", struct{}{})
	}

	id := fmt.Sprint("t", rapid.IntRange(0, 7).Draw(rt, "id"))
	tok := record.Token{Token: task.Token{ID: id, Subject: subject()}, Hash: hex.EncodeToString(sum(one("secret", "s1", "s2")))}
	switch rapid.IntRange(0, 3).Draw(rt, "kind") {
	case 0:
		tok.Kind, tok.Parent, tok.Until = task.TokenKindSession, fmt.Sprint("t", rapid.IntRange(0, 7).Draw(rt, "parent")), task.At(now.Add(time.Hour))
	case 1:
		tok.Kind, tok.Groups, tok.Until = task.TokenKindSession, []string{"group:idp/ops"}, task.At(now.Add(time.Hour))
	}
	if rapid.Bool().Draw(rt, "scoped") {
		tok.Scope = &task.TokenScope{Namespaces: []string{"team-a"}}
		tok.Scope.Role, tok.Scope.RoleUID = role()
	}

	return end(keys.Token(id), tok)
}
