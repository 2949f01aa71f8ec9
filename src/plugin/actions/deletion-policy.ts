import { isCode } from '../../base/index.ts';
import type { KubeClient, KubeObject, Resource } from '../../kube/index.ts';
import { patiently } from './setting.ts';

/** Attempts to change a content that others change at the same time. Our choice. */
const CHANGES_MAX = 5;

/**
 * Changes a content in the version that was looked at, and looks again when its controllers have changed it meanwhile. `change`
 * returns a merge patch, or undefined where nothing is to be changed. Returns the content as it is then; undefined for one that is
 * gone. Throws what `change` throws, and `KUBE_CONFLICT` when others change the content all the time.
 */
export async function changeContent<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  name: string,
  change: (content: T) => { readonly metadata?: object; readonly spec?: object } | undefined,
  signal: AbortSignal,
): Promise<T | undefined> {
  for (let attempt = 1; ; attempt++) {
    const content = await patiently(() => client.find(resource, { name }, { signal }), signal);
    const wanted = content && change(content);
    if (!wanted) return content;
    const { resourceVersion } = content.metadata;
    const patch = { ...wanted, metadata: { ...wanted.metadata, resourceVersion } };
    try {
      return await patiently(() => client.patch(resource, { name }, patch, { signal }), signal);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      if (!isCode(error, 'KUBE_CONFLICT') || attempt === CHANGES_MAX) throw error;
    }
  }
}
