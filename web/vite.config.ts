// How the page is built: one script and one style under fixed names, which the daemon has in its binary. Nothing is loaded
// from elsewhere, and nothing is in the HTML that the policy of the page would refuse.

import { defineConfig } from 'vite';

export default defineConfig({
  build: {
    target: 'es2022',
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: 'assets/page.js',
        assetFileNames: 'assets/page[extname]',
        inlineDynamicImports: true,
      },
    },
  },
});
