import * as zlib from 'node:zlib';
import { goJson } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { decodeManifests } from '../../src/repository/manifest/manifest-content.ts';

/**
 * Merges the contents of manifests as Kopia does. Uses the index that this client has loaded, and
 * drops deleted manifests (repo/manifest/committed_manifest_manager.go, compactLocked; v0.23.1).
 */
export async function mergeAsKopia({ contents }: Repository): Promise<void> {
  const live = [...contents.entries({ prefix: 'm' })].filter(({ deleted }) => !deleted);
  const latest = new Map<string, ReturnType<typeof decodeManifests>[number]>();
  for (const { contentId } of live) {
    for (const entry of decodeManifests(await contents.getContent(contentId))) {
      const present = latest.get(entry.id);
      if (!present || entry.modifiedNs > present.modifiedNs) latest.set(entry.id, entry);
    }
  }
  const entries = [...latest.values()]
    .filter(({ deleted }) => !deleted)
    .map(({ id, labels, modified, data }) => ({
      id,
      labels: labels && new Map(Object.entries(labels)),
      modified,
      data,
    }));
  const bytes = zlib.gzipSync(Buffer.from(`${goJson({ entries })}\n`));
  const { contentId } = await contents.write(bytes, { prefix: 'm' });
  for (const each of live) {
    if (each.contentId !== contentId) contents.setDeleted(each.contentId, true);
  }
  await contents.flush();
}
