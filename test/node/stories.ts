import type { KubeObject } from '../../src/kube/index.ts';

interface Versioned extends KubeObject {
  status?: { phase?: string | undefined; [key: string]: unknown } | undefined;
}

/** The visible state of a version: its phase, present status fields, finalizer and label. */
export function stepOf({ metadata, status }: Versioned): string {
  const fields = Object.keys(status ?? {})
    .filter((key) => key !== 'phase' && !(key === 'progress' && isEmpty(status?.progress)))
    .sort();
  const marks = [
    ...((metadata.finalizers ?? []).length > 0 ? ['finalizer'] : []),
    ...(metadata.labels?.['velero.io/expose-on-going'] === 'true' ? ['expose-on-going'] : []),
  ];
  return [status?.phase ?? '', fields.join(','), marks.join(',')].join(' | ');
}

const isEmpty = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Object.keys(value).length === 0;

/** The steps in order; versions that differ in numbers only are one. */
export function storyOf(versions: readonly Versioned[]): string[] {
  return versions.map(stepOf).filter((step, i, all) => step !== all[i - 1]);
}
