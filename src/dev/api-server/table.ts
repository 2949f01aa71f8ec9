import type { IncomingMessage } from 'node:http';
import { systemClock } from '../../base/index.ts';
import type { KubeObject, Resource } from '../../kube/index.ts';
import { columnsOf } from './columns.ts';
import type { Stored } from './store.ts';

/** The part of each object that its row carries beside the cells. */
export type IncludeObject = 'None' | 'Metadata' | 'Object';

/** kubectl requests tables to print; programs do not. */
export const isTableWanted = ({ headers }: IncomingMessage): boolean =>
  (headers.accept ?? '').includes('as=Table');

/** Sorting by a field (`--sort-by`) and templates need the whole object. */
export function includeObjectOf(url: URL): IncludeObject {
  const wanted = url.searchParams.get('includeObject');
  return wanted === 'None' || wanted === 'Object' ? wanted : 'Metadata';
}

export interface TableOptions {
  readonly resource: Resource<KubeObject>;
  readonly objects: readonly Stored[];
  readonly version: number;
  readonly include: IncludeObject;
}

/**
 * Objects in the columns of `kubectl get`, in the form of a real server (meta.k8s.io/v1, Table).
 */
export function tableOf({ resource, objects, version, include }: TableOptions): object {
  const columns = columnsOf(resource);
  const now = Number(systemClock.nowNs() / 1_000_000n);
  return {
    kind: 'Table',
    apiVersion: 'meta.k8s.io/v1',
    metadata: { resourceVersion: String(version) },
    columnDefinitions: columns.map(({ name, type = 'string', format = '', priority = 0 }) => ({
      name,
      type,
      format,
      description: '',
      priority,
    })),
    rows: objects.map((object) => ({
      cells: columns.map(({ cell }) => cell(object, now)),
      ...(include !== 'None' && { object: include === 'Object' ? object : partOf(object) }),
    })),
  };
}

const partOf = ({ metadata }: Stored): object => ({
  kind: 'PartialObjectMetadata',
  apiVersion: 'meta.k8s.io/v1',
  metadata,
});
