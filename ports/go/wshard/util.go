package wshard

import (
	"math/big"
	"sort"
)

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

func isNatural(value any) bool {
	switch v := value.(type) {
	case int64:
		return v >= 0
	case *big.Int:
		return v.Sign() >= 0
	}
	return false
}
