import type { KubeObject } from '../../src/kube/index.ts';

export const NAMESPACE = 'velero';

/** An object as the world looks at it. */
export interface Loose {
  metadata: KubeObject['metadata'];
  spec: Record<string, unknown>;
  status?: Record<string, unknown>;
}

export const volumeHandle = ({ spec }: Loose): string =>
  (spec.csi as Record<string, string>).volumeHandle ?? '';
