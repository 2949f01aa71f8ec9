import { CodedError } from '../base/index.ts';
import { type DataDownload, type KubeClient, PVCS, PVS } from '../kube/index.ts';
import { describeUsers, usersOfClaim } from './claim-users.ts';
import { targetProblem, targetRef, unusable } from './in-place-target.ts';

/**
 * Why the volume of a claim cannot be restored in place; undefined if it can. For early messages,
 * before a DataDownload is created; the agent checks again. Throws errors of the API server.
 */
export async function inPlaceHindrance(
  client: KubeClient,
  download: DataDownload,
  signal?: AbortSignal,
): Promise<CodedError | undefined> {
  const ref = targetRef(download);
  const claim = await client.find(PVCS, ref, { signal });
  const name = claim?.spec.volumeName ?? '';
  const volume = name === '' ? undefined : await client.find(PVS, { name }, { signal });
  const problem = targetProblem(download, claim, volume);
  if (problem !== undefined) return unusable(problem);
  const users = await usersOfClaim(client, ref, signal);
  if (users.length === 0) return undefined;
  const text = `${describeUsers(ref, users)}: scale what uses it down first, so that no pod has it mounted`;
  return new CodedError('TARGET_IN_USE', text);
}
