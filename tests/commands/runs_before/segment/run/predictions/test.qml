<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<!-- made by outsize -->
<qgis version="3.22" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="paletted" band="1" alphaBand="-1" opacity="1" nodataColor="">
      <rasterTransparency/>
      <colorPalette>
        <paletteEntry value="0" color="#808080" alpha="255" label="ground"/>
        <paletteEntry value="1" color="#808080" alpha="255" label="roof"/>
        <paletteEntry value="2" color="#808080" alpha="255" label="water"/>
      </colorPalette>
    </rasterrenderer>
    <brightnesscontrast brightness="0" contrast="0" gamma="1"/>
    <huesaturation saturation="0" grayscaleMode="0"/>
    <rasterresampler maxOversampling="2"/>
  </pipe>
  <blendMode>0</blendMode>
</qgis>
