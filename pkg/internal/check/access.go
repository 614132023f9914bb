package check

import (
	"bytes"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// accessJudge judges the writes of the API by their audit records: no write of a caller commits after the caller's
// rights were reduced (G27), and each write has exactly one audit record in its own transaction (G28).
//
// It compiles the access records as of the revision before a write, and asks whether the subject and the token that the
// audit record names could make that change by them. A group commit has several audit records at one revision; their
// transactions conflict neither with one another nor with a change of access, so that is the state which each compared.
//
// It cannot see who really made a request. It relies on the subject that the record names.
type accessJudge struct {
	judge

	records map[string]accessRecord  // by key, as of the revision before
	table   *access.Table            // compiled from records; nil: it must be compiled again
	pending map[int64]*pendingRecord // by revision: changes whose audit record may follow as a late one
	written map[string][]byte        // the audit records that exist, by key
}

// accessRecord is a record below access/.
type accessRecord struct {
	value  []byte
	mod    int64
	create int64
}

// checkRevision judges the audit records of a revision, and the changes that must have one.
func (j *accessJudge) checkRevision(d *delta, events []Event) {
	defer j.applyRecords(events)

	j.checkRemovals(events)

	changes := j.changesOf(d, events)
	listed := map[object]int{}

	for _, ev := range events {
		id, is := strings.CutPrefix(ev.Key, j.keys.AuditRecords())
		if !is {
			continue
		}

		if ev.Deleted {
			delete(j.written, ev.Key)
			continue
		}

		a, err := record.Decode[task.AuditRecord](ev.Value)
		if err != nil {
			j.addViolation("form", ev.Key, "unreadable record: %v", err)
			continue
		}

		// A record of its own (an intent, an outcome, a late record) may be written twice.
		was, again := j.written[ev.Key]
		j.written[ev.Key] = ev.Value
		if again {
			if !bytes.Equal(was, ev.Value) {
				j.addViolation("G28", ev.Key, "the audit record is changed after it was written")
			}
			continue
		}

		a.ID = id
		switch {
		case a.Late:
			j.checkLate(&a, ev.Key)
		case a.Outcome == task.AuditIntended:
			j.checkRights(j.currentTable(), &a, ev.Key, j.needsOf(d, &a, nil))
		case a.Outcome == task.AuditRead:
			j.checkRights(j.currentTable(), &a, ev.Key, j.needsOfRead(&a))
		case a.Outcome == "":
			for _, o := range a.Objects {
				listed[objectOf(o)]++
			}

			j.checkListed(&a, ev.Key, changes)

			if a.Operation == sweepTokens {
				j.checkSweep(&a, ev.Key, changes)
				continue
			}
			j.checkRights(j.currentTable(), &a, ev.Key, j.needsOf(d, &a, changes))
			j.checkSessions(j.currentTable(), &a, ev.Key, changes)
		}
	}

	j.checkAudited(d, changes, listed)
}

// currentTable returns the table of the access records as of the revision before.
func (j *accessJudge) currentTable() *access.Table {
	if j.table == nil {
		j.table = j.compileTable()
	}

	return j.table
}

// compileTable decodes the access records. A record that cannot be read allows nothing, as in the product.
func (j *accessJudge) compileTable() *access.Table {
	r := access.Records{Created: map[string]int64{}}
	for key, rec := range j.records {
		switch {
		case key == j.keys.Fence():
			r.Fence = rec.mod
		case strings.HasPrefix(key, j.keys.Roles()):
			appendDecoded(&r.Roles, rec.value)
		case strings.HasPrefix(key, j.keys.Bindings()):
			appendDecoded(&r.Bindings, rec.value)
		case strings.HasPrefix(key, j.keys.Namespaces()):
			appendDecoded(&r.Namespaces, rec.value)
		case strings.HasPrefix(key, j.keys.Tokens()):
			if t, err := record.Decode[record.Token](rec.value); err == nil {
				t.Token.ID = strings.TrimPrefix(key, j.keys.Tokens())
				r.Created[t.Token.ID] = rec.create
				r.Tokens = append(r.Tokens, t.Token)
			}
		default:
			if subject, ok := j.keys.ParseDisabledSubject(key); ok {
				r.Disabled = append(r.Disabled, subject)
			}
		}
	}

	table, _ := access.Compile(r)

	return table
}

func appendDecoded[T any](list *[]T, value []byte) {
	if v, err := record.Decode[T](value); err == nil {
		*list = append(*list, v)
	}
}

// applyRecords applies the changes below access/. Every one of them except the creation and the deletion of a token puts
// the fence at the same revision (G27): a writer who was authorised before would not notice the change otherwise. The creation and the deletion of a token put the key of token changes, or delete it in a full etcd. Otherwise a node
// would treat an old copy as current.
func (j *accessJudge) applyRecords(events []Event) {
	fenced, unfenced := false, ""
	announced, unannounced := false, ""

	for _, ev := range events {
		rest, is := strings.CutPrefix(ev.Key, j.keys.Access())
		if !is {
			continue
		}

		_, existed := j.records[ev.Key]
		switch token := strings.HasPrefix(rest, "tokens/"); {
		case ev.Key == j.keys.Fence():
			fenced = true
		case ev.Key == j.keys.TokenChanges():
			announced = true
		case token:
			unannounced = ev.Key
			if existed && !ev.Deleted {
				unfenced = ev.Key
			}
		default:
			unfenced = ev.Key
		}

		j.table = nil
		if ev.Deleted {
			delete(j.records, ev.Key)
		} else {
			j.records[ev.Key] = accessRecord{value: ev.Value, mod: ev.ModRevision, create: ev.CreateRevision}
		}
	}

	if unfenced != "" && !fenced && j.cluster.revision > j.cluster.began {
		j.addViolation("G27", unfenced, "an access record changes, and the fence does not")
	}

	// After the key was deleted in a full etcd, nodes compare all records until it exists again.
	_, isPresent := j.records[j.keys.TokenChanges()]
	if unannounced != "" && !announced && isPresent && j.cluster.revision > j.cluster.began {
		j.addViolation("G27", unannounced, "a token is created or deleted, and the key of token changes does not change")
	}
}
