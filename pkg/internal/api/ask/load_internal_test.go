package ask

import (
	"reflect"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

func TestLoadText_ReadsWhatFormatLoadWrites(t *testing.T) {
	t.Parallel()

	for _, l := range []readmodel.LoadRange{{From: 0, Minutes: 1}, {From: 1_800_000_000_000, Minutes: 1440, Makers: []int{0, 1439}}} {
		var got loadText
		if err := got.UnmarshalText([]byte(formatLoad(&l))); err != nil || !reflect.DeepEqual(*got.LoadRange, l) {
			t.Errorf("%s became %+v, %v", formatLoad(&l), got.LoadRange, err)
		}
	}

	var none loadText
	if err := none.UnmarshalText(nil); err != nil || none.LoadRange != nil {
		t.Errorf("an empty text: %v, %v", none.LoadRange, err)
	}

	for _, text := range []string{"0", "x,1", "0,0", "0,1441", "1,5", "0,5,5", "0,5,-1", "0,30,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21"} {
		if err := none.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
