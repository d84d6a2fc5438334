// Package wshard reads and writes WShard files: one episode of a robot, an RL agent or a world model in each, with
// observations, actions, rewards, ends and clocks, and beside them what models predicted.
//
// Open gives an episode without reading its arrays: each channel reads its bytes when it is asked for them. Save writes
// an episode, in the canonical form of spec/wshard.md, under its name in one step.
package wshard
