import type { Kind } from "./kind.js";

export const container: Kind = {};
