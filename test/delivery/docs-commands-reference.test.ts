import { it } from 'vitest';
import { commandLinePage, TYPED_PASSWORD } from './docs-pages/command-line.ts';
import { followedPages } from './docs-pages/following.ts';
import { installLongshore } from './docs-pages/prepared.ts';

const PORT = 28_800;

followedPages('examples of the reference do what is said of them', PORT, (follow, before) => {
  before(async (cluster) => {
    // A page types it: the random one of a new installation is known only afterwards.
    await cluster.sh(`kubectl create namespace velero
      kubectl -n velero create secret generic velero-repo-credentials --from-literal=repository-password=${TYPED_PASSWORD}`);
    await installLongshore(cluster);
  });
  it('docs/cli.md', () => follow(commandLinePage));
});
