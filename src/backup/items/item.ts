import type { ServedResource } from '../../kube/index.ts';
import type { SpoolPlace } from './spool.ts';

/** An object that the API server listed for the backup: its name, and where its bytes wait. */
export interface Item {
  readonly resource: ServedResource;
  /** As {@link typeOf} writes it. */
  readonly type: string;
  /** `apiVersion/Kind`, as of the object itself. */
  readonly kind: string;
  /** `''` for an object without a namespace. */
  readonly namespace: string;
  readonly name: string;
  /** Undefined where it did not fit into the spool: it is asked for when its turn comes. */
  readonly place: SpoolPlace | undefined;
  /** Named in `orderedResources`. */
  readonly isOrdered: boolean;
  /** Of its list alone. */
  readonly row: number;
}

/** `namespace/name`, or the name alone: as users write it, and Velero in its list of resources. */
export const idOf = ({ namespace, name }: { namespace: string; name: string }): string =>
  namespace === '' ? name : `${namespace}/${name}`;

/** What {@link idOf} was made of. */
export function refOf(id: string): { namespace: string; name: string } {
  const at = id.indexOf('/');
  return at < 0
    ? { namespace: '', name: id }
    : { namespace: id.slice(0, at), name: id.slice(at + 1) };
}
