// Episodes: spec/wshard.md.
export {};
