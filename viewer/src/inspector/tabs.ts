import type { Tab } from "./tab";

export const tabs: readonly Tab[] = [];
