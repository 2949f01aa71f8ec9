import { it } from 'vitest';
import { dataMoversPage } from './docs-pages/backing-up.ts';
import { followedPages } from './docs-pages/following.ts';
import { installVelero, operatingPage, switchPage, withVeleroPage } from './docs-pages/velero.ts';

const PORT = 28_900;

followedPages(
  'where Velero runs, commands of the pages do what is said of them',
  PORT,
  (follow, before) => {
    before(installVelero);
    it('docs/with-velero.md', () => follow(withVeleroPage));
    it('docs/data-movers.md', () => follow(dataMoversPage));
    it('docs/operating.md', () => follow(operatingPage));
    it('docs/switch-from-velero.md', () => follow(switchPage));
  },
);
