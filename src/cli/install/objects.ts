import { CodedError, isCode } from '../../base/index.ts';
import type { KubeClient, KubeObject, Resource } from '../../kube/index.ts';
import { isOfCluster, type Manifest } from './kustomize.ts';

const FIELD_MANAGER = 'longshore-install';

/** Only for installed kinds. */
export function resourceOf({
  apiVersion,
  kind,
}: Pick<Manifest, 'apiVersion' | 'kind'>): Resource<KubeObject> {
  const at = apiVersion.lastIndexOf('/');
  const lower = kind.toLowerCase();
  return {
    group: at < 0 ? '' : apiVersion.slice(0, at),
    version: apiVersion.slice(at + 1),
    kind,
    plural: lower.endsWith('y') ? `${lower.slice(0, -1)}ies` : `${lower}s`,
    namespaced: !isOfCluster({ kind }),
  };
}

export const pathOf = (
  { group, version, plural }: Resource<KubeObject>,
  { metadata }: Manifest,
): string => {
  const base = group === '' ? `/api/${version}` : `/apis/${group}/${version}`;
  const scope = metadata.namespace === undefined ? '' : `/namespaces/${metadata.namespace}`;
  return `${base}${scope}/${plural}/${metadata.name}`;
};

/** Server-side apply: creates the object or updates our fields. Fields of other managers stay. */
export async function apply(
  client: KubeClient,
  object: Manifest,
  signal: AbortSignal,
): Promise<KubeObject> {
  const path = `${pathOf(resourceOf(object), object)}?fieldManager=${FIELD_MANAGER}&force=true`;
  return (await client.raw({
    method: 'PATCH',
    path,
    body: object,
    signal,
    contentType: 'application/apply-patch+yaml',
    what: `apply ${object.kind} ${object.metadata.name}`,
  })) as KubeObject;
}

const ESTABLISHED_MS = 30_000;
const POLL_MS = 250;

/** Waits until the API server serves the kind. Throws `NOT_ESTABLISHED`. */
export async function untilServed(
  client: KubeClient,
  definition: Manifest,
  signal: AbortSignal,
): Promise<void> {
  const path = pathOf(resourceOf(definition), definition);
  const isServed = async (): Promise<boolean> => {
    const now = (await client.raw({ method: 'GET', path, signal })) as {
      status?: { conditions?: { type: string; status: string }[] | null };
    };
    // The conditions are null at first.
    return (now.status?.conditions ?? []).some(
      ({ type, status }) => type === 'Established' && status === 'True',
    );
  };
  if (await until(isServed, ESTABLISHED_MS, signal)) return;
  const text = `the API server does not serve ${definition.metadata.name}, which it has: kubectl describe crd ${definition.metadata.name}`;
  throw new CodedError('NOT_ESTABLISHED', text);
}

/** Returns false at the time limit. */
export async function until(
  isSo: () => Promise<boolean>,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  const endMs = performance.now() + timeoutMs;
  for (;;) {
    signal.throwIfAborted();
    if (await isSo()) return true;
    if (performance.now() >= endMs) return false;
    await new Promise((resume) => setTimeout(resume, POLL_MS));
  }
}

/** Undefined if the object or its kind does not exist. */
export async function findObject(
  client: KubeClient,
  object: Manifest,
  signal: AbortSignal,
): Promise<KubeObject | undefined> {
  try {
    const path = pathOf(resourceOf(object), object);
    return (await client.raw({ method: 'GET', path, signal })) as KubeObject;
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
    throw error;
  }
}
