package mutant_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
