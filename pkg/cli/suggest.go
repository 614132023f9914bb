package cli

import "github.com/carillonhq/carillon/pkg/task"

// nearest is the word of words that was probably meant by typed; "" if none is
// near enough.
func nearest(typed string, words []string) string { return task.Nearest(typed, words) }
