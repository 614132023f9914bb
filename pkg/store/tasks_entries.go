package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// EntryReader reads the entries of many shards for one list. Many tasks have the same schedule
// and the same policies, so it decodes each distinct text once. It must be used by one
// goroutine only.
type EntryReader struct {
	tasks    Tasks
	parts    record.EntryParts     // reused for each entry
	timings  map[string]task.Entry // decoded schedules, by their text
	policies map[string]task.Entry // decoded policies, by their text
	labels   map[string]task.Entry // decoded labels, by their text
}

// NewEntryReader returns an EntryReader that has read nothing yet.
func (s Tasks) NewEntryReader() *EntryReader {
	return &EntryReader{tasks: s, timings: map[string]task.Entry{}, policies: map[string]task.Entry{}, labels: map[string]task.Entry{}}
}

// mostTexts is how many texts of each kind an EntryReader keeps.
const mostTexts = 20_000

// Shard returns the readable entries of a shard in the order of their keys, of one namespace
// or, if namespace is empty, of all. They do not include actions.
func (r *EntryReader) Shard(ctx context.Context, shard int, namespace string) (refs []record.Ref, entries []*task.Entry, err error) {
	prefix := r.tasks.keys.Entries(shard)
	if namespace != "" {
		prefix += namespace + "/"
	}

	all, _, err := r.tasks.getAll(ctx, prefix)
	if err != nil {
		return nil, nil, fmt.Errorf("list the entries of shard %d: %w", shard, err)
	}

	for _, e := range all {
		k, ok := r.tasks.keys.ParseShard(string(e.Key))
		if !ok || k.Kind != record.KindEntry {
			continue
		}

		if entry, err := r.decodeEntry(e.Value); err == nil {
			refs, entries = append(refs, k.Ref), append(entries, entry)
		}
	}

	return refs, entries, nil
}

// decodeEntry decodes an entry without its action.
func (r *EntryReader) decodeEntry(value []byte) (*task.Entry, error) {
	p := &r.parts
	if err := p.Split(value); err != nil {
		return nil, err
	}

	entry, err := decodeRemembered(r.policies, p.Policy, record.DecodePolicy)
	if err != nil {
		return nil, err
	}

	timing, err := decodeRemembered(r.timings, p.Timing, record.DecodeTiming)
	if err != nil {
		return nil, err
	}

	labels, err := decodeRemembered(r.labels, p.Labels, decodeLabels)
	if err != nil {
		return nil, err
	}

	e := entry
	e.Labels = labels.Labels
	e.Schedule, e.Timezone, e.DST = timing.Schedule, timing.Timezone, timing.DST
	e.Start, e.End, e.Jitter = timing.Start, timing.End, timing.Jitter
	e.UID, e.Generation, e.From, e.Anchor, e.Paused = string(p.UID), p.Generation, p.From, p.Anchor, p.Paused
	if len(p.Own) > 0 {
		own, err := record.DecodeOwn(p.Own)
		if err != nil {
			return nil, err
		}
		e.Own = &own
	}

	return &e, nil
}

// decodeLabels returns an entry that has only labels.
func decodeLabels(text string) (e task.Entry, err error) {
	if text != "" {
		e.Labels, err = record.DecodeLabels([]byte(text))
	}
	return e, err
}

// decodeRemembered returns the decoded text from known, or decodes it and adds it there.
func decodeRemembered(known map[string]task.Entry, text []byte, decode func(string) (task.Entry, error)) (task.Entry, error) {
	if e, ok := known[string(text)]; ok {
		return e, nil
	}

	e, err := decode(string(text))
	if err == nil && len(known) < mostTexts {
		known[string(text)] = e
	}

	return e, err
}

// Entries reads the entries of several tasks. The result is nil for an entry that is absent or
// cannot be read.
func (s Tasks) Entries(ctx context.Context, refs []record.Ref) ([]*task.Entry, error) {
	keys := make([]string, len(refs))
	for i, ref := range refs {
		keys[i] = s.keys.Entry(ref)
	}

	list := make([]*task.Entry, len(refs))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		if entry, err := record.DecodeEntry(e.Value); err == nil {
			list[i] = &entry
		}
	})

	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}

	return list, nil
}
