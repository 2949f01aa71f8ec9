import { it } from 'vitest';
import { dataMoversPage } from './docs-pages/backing-up.ts';
import { followedPages } from './docs-pages/following.ts';
import {
  fileSystemBackupPage,
  nodeAgentPage,
  operatingPage,
  passwordsPage,
  replaceNodeAgentPage,
  repositoriesPage,
} from './docs-pages/operating.ts';
import { installVelero, switchPage, withVeleroPage } from './docs-pages/velero.ts';

const PORT = 28_900;

followedPages(
  'where Velero runs, commands of the pages do what is said of them',
  PORT,
  (follow, before) => {
    before(installVelero);
    it('docs/with-velero.md', () => follow(withVeleroPage));
    it('docs/data-movers.md', () => follow(dataMoversPage));
    it('docs/node-agent.md', () => follow(nodeAgentPage));
    it('docs/operating.md', () => follow(operatingPage));
    it('docs/file-system-backup.md', () => follow(fileSystemBackupPage));
    it('docs/repositories.md', () => follow(repositoriesPage));
    it('docs/passwords.md', () => follow(passwordsPage));
    it('docs/replace-node-agent.md', () => follow(replaceNodeAgentPage));
    it('docs/switch-from-velero.md', () => follow(switchPage));
  },
);
