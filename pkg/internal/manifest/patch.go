package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// ApplyPatch merges a JSON merge patch into a spec. It does not validate the result.
func ApplyPatch(spec task.Spec, patch map[string]any) (task.Spec, error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return spec, fmt.Errorf("write the spec: %w", err)
	}

	doc, err := DecodePatch(b)
	if err != nil {
		return spec, fmt.Errorf("read the spec: %w", err)
	}

	// Sources are replaced as a whole, as in a list: a single one must not keep a condition or results of another one.
	if _, given := patch["after"]; given {
		delete(doc, "after")
	}

	// The doc has each default as if its user had written it. A task that gets sources then has the default of such tasks, or with a
	// schedule must say what it wants.
	if _, given := patch["overlap"]; !given && patch["after"] != nil && len(spec.After) == 0 && spec.Overlap == task.Defaults().Overlap {
		delete(doc, "overlap")
	}

	if b, err = json.Marshal(mergePatch(doc, patch)); err != nil {
		return spec, fmt.Errorf("write the patched spec: %w", err)
	}

	return task.DecodeSpec(b)
}

// DecodePatch decodes a JSON object: a spec or a patch of one. It keeps numbers, and the body of a request, as they are
// written.
func DecodePatch(b []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()

	var doc map[string]any
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}

	// A body is a message to the target, in which a null and the order of fields can have a meaning. As a RawMessage,
	// mergePatch also replaces it as a whole.
	var raw struct {
		Action struct {
			rawRequest
			Workflow struct {
				Steps map[string]rawRequest `json:"steps"`
			} `json:"workflow"`
		} `json:"action"`
	}
	if !bytes.Contains(b, []byte(`"json"`)) {
		return doc, nil
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}

	action, _ := doc["action"].(map[string]any)
	raw.Action.keepBody(action)

	flow, _ := action["workflow"].(map[string]any)
	steps, _ := flow["steps"].(map[string]any)
	for name, step := range steps {
		of, _ := step.(map[string]any)
		request := raw.Action.Workflow.Steps[name]
		request.keepBody(of)
	}

	return doc, nil
}

// rawRequest is the body of the request of an action or of a step, as it is written.
type rawRequest struct {
	HTTP struct {
		JSON json.RawMessage `json:"json"`
	} `json:"http"`
}

// keepBody replaces the body in the decoded form of the action, if it has one.
func (r *rawRequest) keepBody(action map[string]any) {
	if request, _ := action["http"].(map[string]any); request["json"] != nil {
		request["json"] = r.HTTP.JSON
	}
}

// mergePatch implements RFC 7396: null removes a field, objects are merged, and any other value replaces the old
// one. Unlike there, an object whose last field is removed is removed, too: without its text, a task has no stdin.
func mergePatch(doc, patch map[string]any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}

	for key, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(doc, key)
		case map[string]any:
			inner, _ := doc[key].(map[string]any)
			had := len(inner) > 0
			merged := mergePatch(inner, v)

			doc[key] = merged
			if had && len(merged) == 0 {
				delete(doc, key)
			}
		default:
			doc[key] = v
		}
	}

	return doc
}

// ResolveTimes replaces the times in a patch, which may be local or relative to now, by instants. Local times are in the time
// zone of the patch or, if it has none, in the one that zone returns.
func ResolveTimes(patch map[string]any, now time.Time, zone func() (string, error)) error {
	for _, field := range TimeFields() {
		text, ok := patch[field].(string)
		if !ok {
			continue
		}

		value, given := patch["timezone"]
		timezone, isSet := value.(string)
		switch {
		case given && !isSet: // reset
			timezone = task.Defaults().Timezone
		case !given && !isInstant(text):
			var err error
			if timezone, err = zone(); err != nil {
				return err
			}
		}

		at, err := Instant(field, text, timezone, now)
		if err != nil {
			return err
		}

		patch[field] = at
	}

	return nil
}

// isInstant reports whether a time includes its offset, so that no zone is needed.
func isInstant(text string) bool {
	var t task.Time
	return t.UnmarshalText([]byte(text)) == nil
}
