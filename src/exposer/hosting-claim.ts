import { CodedError } from '../base/index.ts';
import { type KubeClient, type KubeObject, type ObjectRef, PVCS } from '../kube/index.ts';
import { assertMadeFor } from './ownership.ts';
import type { ExposeContext } from './settings.ts';
import { step } from './step-errors.ts';
import { deletePod, waitBound } from './volumes.ts';

/** The claim that a hosting pod mounts, created for the CR `owner`. */
export interface HostingClaim {
  readonly ref: ObjectRef;
  readonly owner: KubeObject;
}

/** Resolves when the pod's volume is available. Throws the errors of {@link waitBound}. */
export async function waitHostingClaim(
  client: KubeClient,
  { ref, owner }: HostingClaim,
  purpose: 'backup' | 'restore',
  { operationTimeoutMs, signal }: ExposeContext,
): Promise<void> {
  await step(`error to wait ${purpose} PVC bound, ${ref.name}`, () =>
    waitBound(client, ref, owner, { signal, timeoutMs: operationTimeoutMs }),
  );
}

/** Deletes a dead pod before it is recreated. Throws `EXPOSE_FAILED` if its claim is gone. */
export async function removeDeadPod(
  client: KubeClient,
  { ref, owner }: HostingClaim,
  source: 'snapshot' | 'restore',
  { signal }: ExposeContext,
): Promise<void> {
  if (!assertMadeFor(PVCS, await client.find(PVCS, ref), owner)) {
    const text = `the volume of the ${source} is gone: there is no PVC ${ref.namespace ?? ''}/${ref.name}`;
    throw new CodedError('EXPOSE_FAILED', text);
  }
  await deletePod(client, ref, owner, { signal });
}
