import type { KubeObject } from '../kube/index.ts';

/** An object as it is kept: anything may be in it. */
export type Stored = KubeObject & Record<string, unknown>;
